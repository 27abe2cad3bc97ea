-- Sessions of all agents in one list, each with its newest turn; and the directory in which its commands run.

ALTER TABLE sessions ADD COLUMN working_dir TEXT;     -- an absolute path; NULL: the shell's first root
CREATE INDEX sessions_created ON sessions(created_at, id);
CREATE INDEX turn_session ON turn(session_id, key) WHERE session_id IS NOT NULL;
