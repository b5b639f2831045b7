-- Timers of the crate tickwheel.
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
    UNIQUE (kind, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX tickwheel_timers_wake ON tickwheel_timers (kind, wake, id);

-- The clock that all processes go by.
CREATE FUNCTION tickwheel_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';

-- Workers look ahead once a minute. They are told of what is due before their next look.
CREATE FUNCTION tickwheel_tell(wake timestamptz, of_schema text, kind text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF wake < tickwheel_now() + interval '150 seconds' THEN
        PERFORM pg_notify('tickwheel_timers',
            (extract(epoch FROM wake) * 1000000)::bigint || ' ' || of_schema || '/' || kind);
    END IF;
END $$;
CREATE FUNCTION tickwheel_tell_of_new() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM tickwheel_tell(min(added.wake), TG_TABLE_SCHEMA, added.kind) FROM new_timers added
    WHERE added.state = 'waiting' GROUP BY added.kind;
    RETURN NULL;
END $$;
CREATE FUNCTION tickwheel_tell_of_moved() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM tickwheel_tell(NEW.wake, TG_TABLE_SCHEMA, NEW.kind);
    RETURN NULL;
END $$;
CREATE TRIGGER tickwheel_timers_new AFTER INSERT ON tickwheel_timers
    REFERENCING NEW TABLE AS new_timers FOR EACH STATEMENT EXECUTE FUNCTION tickwheel_tell_of_new();
-- Not when a worker sets its own series to the next run: it knows of that, and the others will see it.
CREATE TRIGGER tickwheel_timers_moved AFTER UPDATE OF due ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.state = 'waiting' AND (OLD.state <> 'running' OR NEW.fence <> OLD.fence))
    EXECUTE FUNCTION tickwheel_tell_of_moved();
INSERT INTO tickwheel_schema (version, oldest) VALUES (1, 1);
