-- Version 1. Timers of the crate tickwheel. A version is a file, and these files are run in their order.
CREATE TABLE IF NOT EXISTS tickwheel_schema (version integer NOT NULL, oldest integer NOT NULL);
INSERT INTO tickwheel_schema (version, oldest) SELECT 1, 1 WHERE NOT EXISTS (SELECT FROM tickwheel_schema);
CREATE SEQUENCE tickwheel_fence;
CREATE TABLE tickwheel_timers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 200),
    key text NOT NULL CHECK (octet_length(key) <= 1000),
    payload bytea NOT NULL DEFAULT '',
    due timestamptz NOT NULL CHECK (due >= '1970-01-01 00:00Z' AND due < '9999-01-01 00:00Z'),
    period_ms bigint CHECK (period_ms > 0),
    rule text,
    max_attempts integer CHECK (max_attempts > 0),
    time_limit_ms bigint CHECK (time_limit_ms > 0),
    -- What follows is the workers': leave it to its defaults.
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'dead')),
    attempts integer NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    held_until timestamptz,
    owner text,
    error text,
    wake timestamptz GENERATED ALWAYS AS (coalesce(held_until, due)) STORED,
    -- A constraint's name is in the message about a row that breaks it.
    CONSTRAINT "period_ms or rule, not both" CHECK (period_ms IS NULL OR rule IS NULL),
    CONSTRAINT "with state = 'dead' set held_until = 'infinity'" CHECK (state <> 'dead' OR held_until IS NOT DISTINCT FROM 'infinity'),
    UNIQUE (kind, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX tickwheel_timers_wake ON tickwheel_timers (kind, wake, id);

-- The clock that all processes go by.
CREATE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';
