"""Plans as text and tables for people.

explain       why each layer got its GPUs
alternatives  the cost of every other GPU count of a layer
diff          what changes from one plan to another
summary       a plan in three sentences
tables        tables that fit the page
"""
