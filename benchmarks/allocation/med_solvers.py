"""Solve MED as the textbook program, with big-M, by a general solver.

`python -m benchmarks.allocation.med_solvers highs` reads a problem as JSON from
standard input and prints the seconds taken, the sum and the bound. Each solver runs in its own
process with one thread.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SOLVERS = ("gurobi", "cp-sat", "highs")


@dataclass(frozen=True)
class Program:
    """x_ij in {0, 1}, whole d_ij, real H_i; rows are (coefficients by variable, least, most)."""

    most: list[float]
    whole: list[bool]
    cost: list[float]
    rows: list[tuple[dict[int, float], float, float]]


def textbook(problem: dict[str, Any]) -> Program:
    """Return Eq. 4.4, where x_ij = 1 if learner j works for task i."""
    fixed_s, shard_s, shards = problem["fixed_s"], problem["shard_s"], problem["shards"]
    tasks, learners = len(fixed_s), len(fixed_s[0])
    size, infinite = tasks * learners, float("inf")
    rows: list[tuple[dict[int, float], float, float]] = []
    for i in range(tasks):
        for j in range(learners):
            x, d = i * learners + j, size + i * learners + j
            rows.append(({x: fixed_s[i][j], d: shard_s[i][j], 2 * size + i: -1.0}, -infinite, 0.0))
            rows.append(({d: 1.0, x: -float(shards[i])}, -infinite, 0.0))
            rows.append(({d: 1.0, x: -float(problem["min_shards"][j])}, 0.0, infinite))
        mine = {size + i * learners + j: 1.0 for j in range(learners)}
        rows.append((mine, shards[i], shards[i]))
    rows += [({i * learners + j: 1.0 for i in range(tasks)}, 1, 1) for j in range(learners)]
    price = {size + k: problem["price"][k % learners] for k in range(size)}
    rows.append((price, -infinite, problem["budget"]))
    most = [1.0] * size + [float(shards[k // learners]) for k in range(size)]
    return Program(
        most + problem["deadline_s"],
        [True] * (2 * size) + [False] * tasks,
        [0.0] * (2 * size) + [1.0] * tasks,
        rows,
    )


def highs(program: Program, limit_s: float) -> tuple[float, float]:
    """Return the sum and the bound of HiGHS."""
    highspy = importlib.import_module("highspy")
    model = highspy.Highs()
    for name, value in {
        "output_flag": False,
        "threads": 1,
        "time_limit": limit_s,
        "mip_rel_gap": 0.0,
    }.items():
        model.setOptionValue(name, value)
    for k, most in enumerate(program.most):
        model.addVar(0.0, most)
        model.changeColCost(k, program.cost[k])
        if program.whole[k]:
            model.changeColIntegrality(k, highspy.HighsVarType.kInteger)
    for terms, least, most in program.rows:
        model.addRow(least, most, len(terms), list(terms), list(terms.values()))
    model.run()
    info = model.getInfo()
    return info.objective_function_value, info.mip_dual_bound


def gurobi(program: Program, limit_s: float) -> tuple[float, float]:
    """Return the sum and the bound of Gurobi."""
    gurobipy = importlib.import_module("gurobipy")
    model = gurobipy.Model(env=gurobipy.Env(params={"OutputFlag": 0}))
    model.Params.Threads, model.Params.TimeLimit, model.Params.MIPGap = 1, limit_s, 0.0
    variables = [
        model.addVar(0.0, most, cost, "I" if whole else "C")
        for most, cost, whole in zip(program.most, program.cost, program.whole, strict=True)
    ]
    for terms, least, most in program.rows:
        total = gurobipy.LinExpr(list(terms.values()), [variables[k] for k in terms])
        if least > -float("inf"):
            model.addConstr(total >= least)
        if most < float("inf"):
            model.addConstr(total <= most)
    model.optimize()
    return (model.ObjVal if model.SolCount else float("inf")), model.ObjBound


def cp_sat(program: Program, limit_s: float, scale: int = 10**6) -> tuple[float, float]:
    """Return the sum and the bound of CP-SAT; seconds and prices are scaled to integers."""
    cp_model = importlib.import_module("ortools.sat.python.cp_model")
    model, solver = cp_model.CpModel(), cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, limit_s
    units = [1 if whole else scale for whole in program.whole]
    variables = [
        model.new_int_var(0, int(most * unit), str(k))
        for k, (most, unit) in enumerate(zip(program.most, units, strict=True))
    ]
    for terms, least, most in program.rows:
        total = sum(round(c * scale / units[k]) * variables[k] for k, c in terms.items())
        if least > -float("inf"):
            model.add(total >= round(least * scale))
        if most < float("inf"):
            model.add(total <= round(most * scale))
    model.minimize(sum(v for v, cost in zip(variables, program.cost, strict=True) if cost))
    status = solver.solve(model)
    known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    total_s = solver.objective_value / scale if known else float("inf")
    return total_s, solver.best_objective_bound / scale


def main() -> None:
    """Read one problem, solve it and print the result."""
    job = json.load(sys.stdin)
    solve: Callable[[Program, float], tuple[float, float]] = {
        "highs": highs,
        "gurobi": gurobi,
        "cp-sat": cp_sat,
    }[sys.argv[1]]
    # Import before the measurement: import times are not compared.
    importlib.import_module(
        {"gurobi": "gurobipy", "cp-sat": "ortools.sat.python.cp_model"}.get(sys.argv[1], "highspy")
    )
    start_s = time.perf_counter()
    total_s, bound_s = solve(textbook(job["problem"]), job["limit_s"])
    taken_s = time.perf_counter() - start_s
    print(json.dumps({"taken_s": taken_s, "total_s": total_s, "bound_s": bound_s}))


if __name__ == "__main__":
    main()
