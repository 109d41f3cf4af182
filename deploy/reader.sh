#!/bin/sh
# A role for Grafana that can read what energyopt makes and nothing else. Runs once, when the database is new.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$READER_PASSWORD" -U "$POSTGRES_USER" -d "$POSTGRES_DB" <<'SQL'
CREATE ROLE reader LOGIN PASSWORD :'password';
GRANT USAGE ON SCHEMA public TO reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO reader;
SQL
