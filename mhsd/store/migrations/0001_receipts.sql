-- The chain of receipts, the commands in flight, and the revision of each device.
PRAGMA application_id = 0x4d485344;

CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- body is the receipt's canonical JSON without its evidence member; digest covers body and prev_digest.
CREATE TABLE receipts (
  seq INTEGER PRIMARY KEY,
  receipt_id TEXT NOT NULL,
  device_id TEXT NOT NULL,
  command_id TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('rejected', 'interim', 'final')),
  operation_id TEXT,
  session_id TEXT,
  principal_id TEXT NOT NULL,
  input_digest TEXT NOT NULL,
  prev_digest TEXT NOT NULL,
  digest TEXT NOT NULL,
  body BLOB NOT NULL
);
CREATE UNIQUE INDEX receipts_by_id ON receipts (receipt_id);
CREATE INDEX receipts_by_command ON receipts (device_id, command_id, kind);
CREATE INDEX receipts_by_operation ON receipts (operation_id) WHERE operation_id IS NOT NULL;
CREATE INDEX receipts_by_device ON receipts (device_id);
CREATE INDEX receipts_by_session ON receipts (session_id) WHERE session_id IS NOT NULL;

-- One row for each command that was accepted and has no final receipt. The slot is reused, so the table stays small.
CREATE TABLE intents (
  slot INTEGER PRIMARY KEY,
  device_id TEXT NOT NULL,
  command_id TEXT NOT NULL,
  input_digest TEXT NOT NULL,
  principal_id TEXT NOT NULL,
  operation_id TEXT NOT NULL,
  session_id TEXT,
  body BLOB NOT NULL
);

CREATE TABLE devices (device_id TEXT PRIMARY KEY, revision INTEGER NOT NULL) WITHOUT ROWID;
