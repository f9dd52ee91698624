"""The bytes of MHS/1.0 and their meaning: JSON text, canonical form, JSON-RPC, parameters, schemas, lines."""
