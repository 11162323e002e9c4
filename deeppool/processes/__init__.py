"""Processes: started, watched, and ended with everything that they started.

managed_process      a process that takes commands and answers, as JSON lines
fork_server          the process that imports torch once and forks workers
fork_server_client   the side that asks it to
launcher             where the ranks of a run start; LocalLauncher for this machine
rank_group           all ranks of a run, started and commanded together
heartbeat            what a rank does now, sent regularly
hang_detector        which rank no longer makes progress
failure_attribution  which rank failed first, and what the error says
shared_page          a page of memory between a foreground rank and its background
wakeup_pipe          wakes a background that waits
torchrun/            the same over the processes that torchrun started
"""
