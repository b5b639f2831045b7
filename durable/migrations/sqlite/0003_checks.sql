-- Version 3. Statements of other programs that would not do what they say are refused.
-- Tables of another version than 2 get none, which the column does not allow. So this file runs once, and in its turn.
UPDATE tickwheel_schema SET version = CASE version WHEN 2 THEN 3 END;
CREATE TRIGGER tickwheel_timers_new_kind BEFORE INSERT ON tickwheel_timers
WHEN length(CAST(NEW.kind AS BLOB)) NOT BETWEEN 1 AND 200 OR length(CAST(NEW.key AS BLOB)) > 1000
BEGIN SELECT RAISE(ABORT, 'a kind has 1 to 200 bytes, and a key at most 1000'); END;
CREATE TRIGGER tickwheel_timers_changed_kind BEFORE UPDATE OF kind, key ON tickwheel_timers
WHEN length(CAST(NEW.kind AS BLOB)) NOT BETWEEN 1 AND 200 OR length(CAST(NEW.key AS BLOB)) > 1000
BEGIN SELECT RAISE(ABORT, 'a kind has 1 to 200 bytes, and a key at most 1000'); END;
CREATE TRIGGER tickwheel_timers_new_due BEFORE INSERT ON tickwheel_timers WHEN NEW.due NOT BETWEEN 0 AND 253370764800000
BEGIN SELECT RAISE(ABORT, 'a timer is due between the years 1970 and 9998: `due` is milliseconds since 1970'); END;
CREATE TRIGGER tickwheel_timers_changed_due BEFORE UPDATE OF due ON tickwheel_timers WHEN NEW.due NOT BETWEEN 0 AND 253370764800000
BEGIN SELECT RAISE(ABORT, 'a timer is due between the years 1970 and 9998: `due` is milliseconds since 1970'); END;
CREATE TRIGGER tickwheel_timers_dead BEFORE UPDATE OF due ON tickwheel_timers
WHEN OLD.state = 'dead' AND NEW.state = 'dead' AND NEW.due <> OLD.due
BEGIN SELECT RAISE(ABORT, 'the timer is dead, and a dead timer that is moved stays dead: set `state` to ''waiting'' too, or add AND state = ''waiting'' to the statement'); END;
CREATE TRIGGER tickwheel_timers_running BEFORE UPDATE OF due, payload ON tickwheel_timers
WHEN OLD.state = 'running' AND NEW.state = 'running' AND (NEW.due <> OLD.due OR NEW.payload <> OLD.payload)
BEGIN SELECT RAISE(ABORT, 'a worker runs the timer, and the change would be lost with the end of the run: delete it and put it in again, or add AND state = ''waiting'' to the statement'); END;

-- A dead timer that is set to waiting by hand wakes at its due time, with all its attempts before it.
CREATE TRIGGER tickwheel_timers_requeued AFTER UPDATE OF state ON tickwheel_timers
WHEN OLD.state = 'dead' AND NEW.state = 'waiting' AND NEW.held_until = OLD.held_until
BEGIN
    UPDATE tickwheel_timers SET held_until = NULL, attempts = 0, error = NULL WHERE id = NEW.id;
END;
