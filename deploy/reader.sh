#!/bin/sh
# A role for Grafana that can read the views of results and nothing else: no table, so no key of the API. Runs at each
# start of the stack, after the views were made.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$READER_PASSWORD" <<'SQL'
SELECT 'CREATE ROLE reader LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reader') \gexec
ALTER ROLE reader PASSWORD :'password';
GRANT USAGE ON SCHEMA public TO reader;
SELECT format('GRANT SELECT ON %I TO reader', viewname) FROM pg_views
WHERE schemaname = 'public' AND viewname LIKE 'energyopt\_v\_%' \gexec
SQL
