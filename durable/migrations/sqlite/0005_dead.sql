-- Version 5. It is about an index of PostgreSQL. A version is the same for all databases, so here is nothing new.
UPDATE tickwheel_schema SET version = 5;
