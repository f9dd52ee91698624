-- The digest that the chain had at a receipt, stated at a time and signed by the endpoint; a store in memory does not sign.
-- meta.pruned_through is the signed head up to which receipts were removed because they were older than the retention.
CREATE TABLE signed_heads (
  seq INTEGER PRIMARY KEY,
  digest TEXT NOT NULL,
  signed_at TEXT NOT NULL,
  public_key TEXT,
  value BLOB
);
CREATE INDEX signed_heads_by_time ON signed_heads (signed_at);
