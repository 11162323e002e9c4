"""Live runs and trainings: started, measured, and handed back as records.

launch                    dp.launch: a plan, measured alone and beside a background job
interleaved_measurement   the conditions of a run, measured in turn
train                     dp.train: a plan, trained to the end
restart_loop              a training over restarts of its ranks
handle                    dp.start: a handle on a run in a thread
"""
