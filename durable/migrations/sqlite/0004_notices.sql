-- Version 4. It is about the notices of PostgreSQL. A version is the same for all databases, so here is nothing new.
UPDATE tickwheel_schema SET version = 4;
