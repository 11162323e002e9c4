"""Plans as text and tables for people.

explain       reasons for the GPU count of each layer
alternatives  cost of every other GPU count of a layer, as a record
diff          differences between two plans, as a record
comparison    any two records of one kind, compared
as_code       the Python or the command that makes a plan or a run again
summary       a plan in three sentences
tables        text tables that fit the page
"""
