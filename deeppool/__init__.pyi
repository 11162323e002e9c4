"""The public names of deeppool and where they live."""

from . import figures as figures
from . import widgets as widgets
from .base.run_registry import running as running
from .base.sharing import Sharing as Sharing
from .cluster.cluster import Cluster as Cluster
from .cluster.cluster import Link as Link
from .cluster.cluster import find_cluster as find_cluster
from .collocation.interference.measure import measure_interference as measure_interference
from .collocation.job_queue import BackgroundJob as BackgroundJob
from .coordinator.client import Coordinator as Coordinator
from .device.environment import environment as environment
from .execution.checkpoint import load_weights as load_weights
from .graph.capture.capture import capture as capture
from .planning.check import check as check
from .planning.planner import frontier as frontier
from .planning.planner import plan as plan
from .planning.replanning.replan import replan as replan
from .planning.report.diff import diff as diff
from .planning.studies.collocation_tradeoff import share as share
from .planning.studies.scaling import scaling as scaling
from .planning.studies.steps_to_accuracy import StepsTable as StepsTable
from .planning.studies.steps_to_accuracy import find_steps as find_steps
from .profiling.comparison import compare_profiles as compare_profiles
from .profiling.estimate.estimate import estimate as estimate
from .profiling.measure.profile import profile as profile
from .profiling.network.measure import measure_network as measure_network
from .profiling.shipped import find_profile as find_profile
from .records.files import load as load
from .records.files import save as save
from .records.run_comparison import compare_runs as compare_runs
from .runs.handle import start as start
from .runs.launch import launch as launch
from .runs.train import train as train
from .simulation.cluster.comparison import compare_strategies as compare_strategies
from .simulation.cluster.simulate import simulate_cluster as simulate_cluster
from .simulation.cluster.workload import TraceJob as TraceJob
from .simulation.cluster.workload import WorkloadTrace as WorkloadTrace
from .simulation.plan.conditions import Conditions as Conditions
from .simulation.plan.conditions import profiled_conditions as profiled_conditions
from .simulation.plan.simulate import simulate as simulate
from .simulation.validation.compare_with_run import compare_with_run as compare_with_run
from .telemetry.sampler import Sampler as Sampler
from .training.training_job import TrainingJob as TrainingJob

__version__: str
