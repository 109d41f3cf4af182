"""Metrics of who used the energy. Part of the catalogue. Labels are bounded: tenants are the configured ones."""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric, own

JOULES = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


class AccountMetrics(NamedTuple):
    """Families of the account. ``tenant`` is "nobody" for energy that no tenant answers for."""

    attributed: Metric = own(
        "attributed_energy_joules_total",
        "counter",
        "Energy by what it was spent on; over all phases and tenants it sums to the sensors' energy.",
        *("model", "tenant", "phase", "method"),
    )
    tiers: Metric = own(
        "request_energy_by_tier_joules_total",
        "counter",
        "Energy of requests by computing and by the cache tier tokens came from; sums to prefill and decode.",
        *("model", "tier"),
    )
    requests: Metric = own(
        "request_energy_joules",
        "histogram",
        "Energy of finished requests.",
        *("model", "tenant", "source"),
        buckets=JOULES,
    )
    carbon: Metric = own(
        "carbon_grams_total",
        "counter",
        "CO2e of all measured energy since start, idle time included, location-based, at the boundary.",
        *("model", "boundary"),
    )
    carbon_unknown: Metric = own(
        "carbon_unknown_energy_joules_total",
        "counter",
        "Energy at the boundary that is in no gram of carbon, because the grid's intensity was not known.",
        *("model", "boundary"),
    )
    cost: Metric = own(
        "energy_cost_total",
        "counter",
        "Price of all measured energy since start, idle time included, at the boundary.",
        *("model", "boundary", "currency"),
    )
    grid: Metric = own("grid_carbon_grams_per_joule", "gauge", "Carbon intensity of the grid now.", "model")
    pue: Metric = own("pue_ratio", "gauge", "Power of the building over that of its computers, as configured.", "model")
    fit_error: Metric = own(
        "cost_model_error_ratio",
        "gauge",
        "Mean error of the step times that the cost model predicts, over the time predicted.",
        "model",
    )
    fit_trusted: Metric = own(
        "cost_model_trusted", "gauge", "1 while energy is divided by the fitted cost model.", "model"
    )


ACCOUNT = AccountMetrics()


class StoreMetrics(NamedTuple):
    """Families of the writer that keeps energy in a database."""

    up: Metric = own("energy_store_up", "gauge", "1 if the database took what it was last given.")
    queue: Metric = own("energy_store_queue_pieces", "gauge", "Pieces of energy that wait for the writer.")
    waiting: Metric = own("energy_store_waiting_rows", "gauge", "Rows that wait for the database.")
    rows: Metric = own("energy_store_rows_total", "counter", "Rows of seconds by result: written, lost.", "result")


STORE = StoreMetrics()
