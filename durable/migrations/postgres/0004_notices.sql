-- Version 4. The price of a notice, and a choice.
--
-- A commit that tells somebody something holds a lock of the whole cluster until it is on the disk, so such commits come one
-- after the other. There are three ways, of which one is set with `tickwheel_set_notices`:
--
-- - 'at once': each commit tells the workers of its timers that are due within 150 seconds.
-- - 'debounced': when many commits have told something, the workers look each 10 ms for some seconds and write that into
--   `tickwheel_awake`. As long as it stands there, commits tell nothing.
-- - 'never': no commit tells anything, so `PREPARE TRANSACTION` works. The workers look as often as they are told to.
LOCK TABLE tickwheel_schema, tickwheel_timers;
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema) IS DISTINCT FROM 3 THEN
        RAISE 'this file brings tables of version 3 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;
ALTER TABLE tickwheel_schema ADD notices text NOT NULL DEFAULT 'at once'
    CONSTRAINT tickwheel_notices CHECK (notices IN ('at once', 'debounced', 'never'));

-- Until when the workers of a kind look by themselves. After a crash it is empty, and nobody has lost anything.
CREATE UNLOGGED TABLE tickwheel_awake (kind text PRIMARY KEY, until timestamptz NOT NULL) WITH (fillfactor = 50);

DO $do$ BEGIN EXECUTE replace($f$
CREATE OR REPLACE FUNCTION tickwheel_tell(wake timestamptz, of_schema text, kind text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF wake < @extschema@.tickwheel_now() + interval '150 seconds' AND coalesce(
        (SELECT awake.until FROM @extschema@.tickwheel_awake awake WHERE awake.kind = $3 COLLATE "default")
            <= @extschema@.tickwheel_now(), true) THEN
        PERFORM pg_notify('tickwheel_timers',
            (extract(epoch FROM wake) * 1000000)::bigint || ' ' || of_schema || '/' || kind);
    END IF;
END $$;
-- Most statements have nothing to tell, which is asked first, because that is quick.
CREATE OR REPLACE FUNCTION tickwheel_tell_of_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM new_timers added
        WHERE added.wake < @extschema@.tickwheel_now() + interval '150 seconds' AND coalesce(
            (SELECT awake.until FROM @extschema@.tickwheel_awake awake WHERE awake.kind = added.kind)
                <= @extschema@.tickwheel_now(), true)) THEN
        PERFORM @extschema@.tickwheel_tell(min(added.wake), TG_TABLE_SCHEMA, added.kind) FROM new_timers added
        WHERE added.state = 'waiting' GROUP BY added.kind;
    END IF;
    RETURN NULL;
END $$;
$f$, '@extschema@', quote_ident(current_schema())); END $do$;

-- What was not told, because it was too far off or because the workers were awake, is told by a transaction that has taken long.
DROP TRIGGER tickwheel_timers_new_late ON tickwheel_timers;
CREATE CONSTRAINT TRIGGER tickwheel_timers_new_late AFTER INSERT ON tickwheel_timers
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tickwheel_tell_late();
DROP TRIGGER tickwheel_timers_moved_late ON tickwheel_timers;
CREATE CONSTRAINT TRIGGER tickwheel_timers_moved_late AFTER UPDATE OF due, state, kind ON tickwheel_timers
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.state = 'waiting' AND OLD.state <> 'running')
    EXECUTE FUNCTION tickwheel_tell_late();

-- Sets the way. The owner of the tables may do that at any time. The workers come to know of it with the commit.
CREATE FUNCTION tickwheel_set_notices(way text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    of_trigger text;
BEGIN
    IF way IS NULL OR way NOT IN ('at once', 'debounced', 'never') THEN
        RAISE 'there is no way % to tell workers', coalesce(quote_literal(way), 'NULL') USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give ''at once'', ''debounced'' or ''never''.';
    END IF;
    LOCK TABLE tickwheel_schema, tickwheel_timers;
    UPDATE tickwheel_schema SET notices = way;
    DELETE FROM tickwheel_awake;
    FOREACH of_trigger IN ARRAY ARRAY['new', 'new_late', 'moved', 'moved_late'] LOOP
        EXECUTE format('ALTER TABLE tickwheel_timers %s TRIGGER tickwheel_timers_%s',
            CASE WHEN way = 'never' THEN 'DISABLE' ELSE 'ENABLE' END, of_trigger);
    END LOOP;
    PERFORM pg_notify('tickwheel_timers',
        CASE way WHEN 'at once' THEN -1 WHEN 'debounced' THEN -2 ELSE -3 END || ' ' || nspname || '/')
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = 'tickwheel_timers'::regclass;
END $$;

UPDATE tickwheel_schema SET version = 4;
