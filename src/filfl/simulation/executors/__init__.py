"""Executors: how simulated clients are computed on one machine.

serial: one after the other. vectorized: many in one batched computation. processes: in worker processes.
"""
