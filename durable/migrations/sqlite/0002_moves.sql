-- Version 2. A timer that waits for another attempt can be moved, and those of long transactions are on time.
-- Tables of another version than 1 get none, which the column does not allow. So this file runs once, and in its turn.
UPDATE tickwheel_schema SET version = CASE version WHEN 1 THEN 2 END;

-- A timer that waits for another attempt, and is moved, begins anew.
CREATE TRIGGER tickwheel_timers_anew AFTER UPDATE OF due ON tickwheel_timers
WHEN OLD.state = 'waiting' AND NEW.state = 'waiting' AND NEW.held_until IS NOT NULL AND NEW.due <> OLD.due
BEGIN
    UPDATE tickwheel_timers SET held_until = NULL, attempts = 0, error = NULL WHERE id = NEW.id;
END;
