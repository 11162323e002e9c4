"""Decisions about jobs, pure: what is known goes in as records, what shall be done comes out.

placement   which waiting job gets which GPUs of a cluster
"""
