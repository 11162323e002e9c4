"""The Python, or the command, that makes a plan or a run again."""

import shlex
from collections.abc import Mapping
from typing import Any

from deeppool.cluster.cluster import Cluster, is_preset
from deeppool.costs.communication import default_model
from deeppool.planning.plan import Plan
from deeppool.profiling.shipped import find_profile, shipped_names
from deeppool.records.files import file_name

CLUSTER_FILE, PLAN_FILE, RUN_FILE = "cluster.json", "plan.json", "run.json"
JOB = "package.module:job"


def plan_python(plan: Plan) -> str:
    """Returns a cell that makes the plan again from its profile: a shipped one by name, another one from its file."""
    arguments = ["profile", "cluster", f"global_batch={plan.global_batch}"]
    arguments += [f"{name}={value!r}" for name, value in _options(plan).items()]
    read = f"dp.load({_profile_file(plan)!r})  # written by dp.save(profile, …); its fingerprint is "
    read += plan.profile_fingerprint
    if (shipped := _shipped_profile(plan)) is not None:
        read = f"dp.find_profile({shipped!r})"
    lines = [
        "import deeppool as dp",
        "",
        f"profile = {read}",
        f"cluster = {_cluster_python(plan.cluster)}",
        f"plan = dp.plan({', '.join(arguments)})",
    ]
    return "\n".join(lines)


def plan_command(plan: Plan) -> str:
    """Returns the command that makes the plan again from its profile, and says how to write the files that it reads."""
    profile, cluster, written = _shipped_profile(plan), plan.cluster.name, []
    if profile is None:
        profile = _profile_file(plan)
        written.append(f"dp.save(profile, {profile!r})")
    if not is_preset(plan.cluster):
        cluster = CLUSTER_FILE
        written.append(f"dp.save(plan.cluster, {cluster!r})")
    words = ["deeppool", "plan", profile, "--gpus", str(plan.gpus)]
    words += ["--global-batch", str(plan.global_batch), *_command_options(_options(plan))]
    words += ["--cluster", cluster, "-o", PLAN_FILE]
    return shlex.join(words) + f"  # first {' and '.join(written)}" * bool(written)


def launch_python(arguments: Mapping[str, Any]) -> str:
    """Returns a cell that runs the plan of a file.

    Args:
        arguments: keyword arguments of :func:`deeppool.launch`; a background that is an object is named ``job``.
    """
    given = [
        f"{name}={value!r}" if isinstance(value, str | int | float) else f"{name}=job"
        for name, value in arguments.items()
        if value is not None
    ]
    return "\n".join(
        [
            "import deeppool as dp",
            "",
            f"plan = dp.load({PLAN_FILE!r})",
            f"record = dp.launch({', '.join(['plan', *given])})",
            f"dp.save(record, {RUN_FILE!r})",
        ]
    )


def launch_command(arguments: Mapping[str, Any]) -> str:
    """Returns the command that runs the plan of a file; arguments are those of :func:`launch_python`."""
    given = {
        name: value if isinstance(value, str | int | float) else JOB
        for name, value in arguments.items()
        if value is not None
    }
    return shlex.join(["deeppool", "run", PLAN_FILE, *_command_options(given), "-o", RUN_FILE])


def _options(plan: Plan) -> dict[str, Any]:
    """Returns the options of the plan that are not the defaults."""
    given = {
        "amplification_limit": (plan.amplification_limit, None),
        "limit_scope": (plan.limit_scope, "layer"),
        "goal": (plan.goal, "fastest"),
        "search": (plan.search, "exact"),
        "network_model": (plan.network_model, default_model(plan.cluster, plan.device)),
        "optimizer": (plan.optimizer, "momentum"),
    }
    return {name: value for name, (value, default) in given.items() if value != default}


def _command_options(options: Mapping[str, Any]) -> list[str]:
    """Returns the options of a command; they are those of Python with dashes."""
    return [
        word
        for name, value in options.items()
        for word in (f"--{name.replace('_', '-')}", f"{value:.12g}" if isinstance(value, float) else str(value))
    ]


def _profile_file(plan: Plan) -> str:
    return file_name(plan.model)


def _shipped_profile(plan: Plan) -> str | None:
    """Returns the name of the plan's profile; None: it did not come with deeppool."""
    names = (name for name in shipped_names() if find_profile(name).fingerprint == plan.profile_fingerprint)
    return next(names, None)


def _cluster_python(cluster: Cluster) -> str:
    if is_preset(cluster):
        return f"dp.find_cluster({cluster.name!r}, gpus={cluster.gpus})"
    if cluster.measured is not None:
        return f"dp.find_cluster({CLUSTER_FILE!r}, gpus={cluster.gpus})  # dp.save(plan.cluster, {CLUSTER_FILE!r})"
    # The representation of such a record is the call that makes it.
    return repr(cluster).replace("Cluster(", "dp.Cluster(", 1).replace("=Link(", "=dp.Link(")
