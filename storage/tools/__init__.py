"""Repairs on a store that no node runs: adopt, recover, repair, rebuild an index. Used by `cli`
only."""
