-- The roles of a ledger in PostgreSQL, with as little as each needs. Run once by a superuser, in the
-- ledger's database, after a first start has made the schemas:
--
--     psql -v server=devmind_server -v reader=devmind_reader -f migrations/postgres/roles.sql DATABASE
--
-- The owner of the schema `ledger` is whoever made it; it migrates, and nobody else needs it. The server
-- appends and cannot change or delete a row of the log, with or without the triggers. It owns the views, which it
-- makes anew. Readers (devmind-replay log, timeline, verify) only read.

\set ON_ERROR_STOP on

SELECT format('CREATE ROLE %I LOGIN', :'server') WHERE to_regrole(:'server') IS NULL \gexec
SELECT format('CREATE ROLE %I LOGIN', :'reader') WHERE to_regrole(:'reader') IS NULL \gexec

REVOKE ALL ON SCHEMA ledger FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA ledger FROM PUBLIC, :"server", :"reader";

GRANT USAGE ON SCHEMA ledger TO :"server", :"reader";
GRANT SELECT ON ALL TABLES IN SCHEMA ledger TO :"server", :"reader";
GRANT INSERT ON ledger.events, ledger.idempotency TO :"server";
-- Which processes are alive is no history.
GRANT INSERT, UPDATE, DELETE ON ledger.node_leases TO :"server";
-- The head moves with every append; its trigger lets it move forward alone.
GRANT UPDATE ON ledger.head TO :"server";
-- States that are derived from the events; the operator alone empties them.
GRANT INSERT, UPDATE ON ledger.snapshots TO :"server";

-- The server makes the schemas of rebuilds beside the live views.
SELECT format('GRANT CREATE ON DATABASE %I TO %I', current_database(), :'server') \gexec
CREATE SCHEMA IF NOT EXISTS views;
ALTER SCHEMA views OWNER TO :"server";
SELECT format('ALTER TABLE views.%I OWNER TO %I', tablename, :'server') FROM pg_tables WHERE schemaname = 'views' \gexec
