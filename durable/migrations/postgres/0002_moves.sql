-- Version 2. A timer that waits for another attempt can be moved, and those of long transactions are on time.
LOCK TABLE tickwheel_schema, tickwheel_timers;
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema) IS DISTINCT FROM 1 THEN
        RAISE 'this file brings tables of version 1 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;

-- Workers look ahead once a minute. They are told of what is due before their next look.
CREATE OR REPLACE FUNCTION tickwheel_tell(wake timestamptz, of_schema text, kind text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF wake < tickwheel_now() + interval '150 seconds' THEN
        PERFORM pg_notify('tickwheel_timers',
            (extract(epoch FROM wake) * 1000000)::bigint || ' ' || of_schema || '/' || kind);
    END IF;
END $$;
CREATE OR REPLACE FUNCTION tickwheel_tell_of_new() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM tickwheel_tell(min(added.wake), TG_TABLE_SCHEMA, added.kind) FROM new_timers added
    WHERE added.state = 'waiting' GROUP BY added.kind;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION tickwheel_tell_of_moved() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM tickwheel_tell(NEW.wake, TG_TABLE_SCHEMA, NEW.kind);
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS tickwheel_timers_new ON tickwheel_timers;
CREATE TRIGGER tickwheel_timers_new AFTER INSERT ON tickwheel_timers
    REFERENCING NEW TABLE AS new_timers FOR EACH STATEMENT EXECUTE FUNCTION tickwheel_tell_of_new();
-- Not when a worker sets its own series to the next run: it knows of that, and the others will see it.
DROP TRIGGER IF EXISTS tickwheel_timers_moved ON tickwheel_timers;
CREATE TRIGGER tickwheel_timers_moved AFTER UPDATE OF due ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.state = 'waiting' AND (OLD.state <> 'running' OR NEW.fence <> OLD.fence))
    EXECUTE FUNCTION tickwheel_tell_of_moved();

-- A transaction may end long after the statement that has decided whether to tell. So for what was too far off then, the
-- end of a long one makes the workers look. It costs some two microseconds for each row.
CREATE OR REPLACE FUNCTION tickwheel_tell_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF transaction_timestamp() < clock_timestamp() - interval '1 second' THEN
        PERFORM pg_notify('tickwheel_timers', '0 ' || TG_TABLE_SCHEMA || '/');
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS tickwheel_timers_new_late ON tickwheel_timers;
CREATE CONSTRAINT TRIGGER tickwheel_timers_new_late AFTER INSERT ON tickwheel_timers
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.wake >= tickwheel_now() + interval '150 seconds')
    EXECUTE FUNCTION tickwheel_tell_late();
DROP TRIGGER IF EXISTS tickwheel_timers_moved_late ON tickwheel_timers;
CREATE CONSTRAINT TRIGGER tickwheel_timers_moved_late AFTER UPDATE OF due ON tickwheel_timers
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.state = 'waiting' AND OLD.state <> 'running' AND NEW.wake >= tickwheel_now() + interval '150 seconds')
    EXECUTE FUNCTION tickwheel_tell_late();

-- A timer that waits for another attempt, and is moved, begins anew.
CREATE OR REPLACE FUNCTION tickwheel_begin_anew() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.held_until := NULL;
    NEW.attempts := 0;
    NEW.error := NULL;
    RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS tickwheel_timers_anew ON tickwheel_timers;
CREATE TRIGGER tickwheel_timers_anew BEFORE UPDATE OF due ON tickwheel_timers FOR EACH ROW
    WHEN (OLD.state = 'waiting' AND NEW.state = 'waiting' AND OLD.held_until IS NOT NULL AND NEW.due <> OLD.due)
    EXECUTE FUNCTION tickwheel_begin_anew();

UPDATE tickwheel_schema SET version = 2;
