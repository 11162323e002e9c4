"""Simulations compared with live runs.

compare_with_run  dp.compare_with_run: simulates a live run and reports the errors as a Fidelity
"""
