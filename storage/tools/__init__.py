"""Repairs of a stopped store: adopt, recover, repair, rebuild an index. Only for `cli`."""
