"""Scripted histories of a store, with a model of what they have promised, and the judge."""
