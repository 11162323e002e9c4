"""Simulations against live runs.

compare_with_run  a simulation of a run, beside the run
fidelity          Fidelity: the record
"""
