"""Simulated machines: production code on a disk, a clock and a network of ours."""
