"""Small durable files: who a store is, what is flushed, what was promised, what is archived."""
