"""Performs schedules on tensors over torch.distributed's point-to-point calls.

performer       Performer: one rank's steps of a schedule, from the calling thread
process_group   process groups with what a device's collectives need
schedule_group  ScheduleGroup: all-reduces in a thread and a process group of their own, beside other work
"""
