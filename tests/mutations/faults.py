"""The faults: a name, a file, what stands there, and what stands there instead."""

from typing import NamedTuple

__all__ = ["FAULTS", "Fault"]


class Fault(NamedTuple):
    """One wrong line."""

    name: str
    file: str
    right: str  # occurs once in the file
    wrong: str
    near: str  # tests that are tried first; the whole suite follows if they pass


FAULTS = [
    # --- Names ------------------------------------------------------------------------
    Fault(
        "a name leaves out what is not always shown",
        "jaxcomp/core/specs/factories.py",
        "if p.name in shown or not _is_default(p, bound.arguments)",
        "if p.name in shown",
        "tests/test_names.py",
    ),
    # --- Compressors ------------------------------------------------------------------
    Fault(
        "sign is 2 % too short",
        "jaxcomp/compressors/sign.py",
        "total * np.float32(1 / count)",
        "total * np.float32(0.98 / count)",
        "tests/compressors/test_quantisers.py"
        "::test_what_draws_nothing_is_its_reference",
    ),
    Fault(
        "qsgd is 2 % too long",
        "jaxcomp/compressors/qsgd.py",
        "Quantized(units / scales, pack_symbols",
        "Quantized(1.02 * units / scales, pack_symbols",
        "tests/compressors/test_conformance.py::test_unbiased",
    ),
    Fault(
        "unbiased random_k is scaled for one element more",
        "jaxcomp/compressors/random_k.py",
        "_scale(values, flat.size / k)",
        "_scale(values, flat.size / (k + 1))",
        "tests/compressors/test_conformance.py::test_unbiased",
    ),
    Fault(
        "sign claims twice its contraction",
        "jaxcomp/compressors/sign.py",
        "delta = 1 / spec.size if",
        "delta = min(1, 2 / spec.size) if",
        "tests/compressors/test_conformance.py::test_contraction",
    ),
    Fault(
        "sign hides a NaN",
        "jaxcomp/compressors/sign.py",
        "jnp.where(jnp.isfinite(total), mean, jnp.nan)",
        "jnp.where(jnp.isfinite(total), mean, 0.0)",
        "tests/compressors/test_conformance.py::test_non_finite_values_surface",
    ),
    Fault(
        "places cost a bit more than they need",
        "jaxcomp/core/coding/indices.py",
        "max(0, (limit // count).bit_length() - 1)",
        "max(0, (limit // count).bit_length() + 1)",
        "tests/coding/test_indices.py::test_places_cost_little_more_than_their_information",
    ),
    Fault(
        "equal elements are counted from the first tensor on",
        "jaxcomp/compressors/_kit/selection.py",
        "(earlier - earlier[segments.starts][segments.owners])",
        "earlier",
        "tests/test_segments.py::test_largest_of_each_is_largest_of_every_one",
    ),
    # --- Keys -------------------------------------------------------------------------
    Fault(
        "a key is used twice: all tensors draw alike",
        "jaxcomp/scope/lift.py",
        "(key, jnp.array(numbers))",
        "(key, 0 * jnp.array(numbers))",
        "tests/test_scope.py::test_tensors_of_one_tree_do_not_share_their_randomness",
    ),
    Fault(
        "a key is used twice: all workers draw alike",
        "jaxcomp/exchanges/_common.py",
        "jax.random.fold_in(key, collectives.index(axis))",
        "jax.random.fold_in(key, 0 * collectives.index(axis))",
        "tests/exchanges/test_plain.py::test_workers_share_places_only_where_they_must",
    ),
    Fault(
        "a key is used twice: all steps draw alike",
        "jaxcomp/transforms/distributed.py",
        "jax.random.fold_in(key, step)",
        "jax.random.fold_in(key, 0 * step)",
        "tests/test_transform.py",
    ),
    # --- Exchanges --------------------------------------------------------------------
    Fault(
        "gather sends every message twice",
        "jaxcomp/exchanges/_common.py",
        "collectives.gather(fuse(tree), axis, alike)",
        "collectives.gather(jax.numpy.tile(fuse(tree), 2), axis, alike)"
        "[:, : fuse(tree).size]",
        "tests/exchanges/test_plain.py"
        "::test_the_program_sends_the_payload_and_nothing_else",
    ),
    Fault(
        "two_phase does not charge the owner with what its answer lost",
        "jaxcomp/exchanges/two_phase.py",
        "sent = jax.tree.map(jnp.subtract, sent, lost)",
        "sent = jax.tree.map(lambda s, m: s, sent, lost)",
        "tests/exchanges/test_methods.py::test_two_phase_top_k_in_numpy",
    ),
    Fault(
        "power_sgd starts anew at every step",
        "jaxcomp/exchanges/power_sgd.py",
        "PowerState(tuple(averaged))",
        "PowerState(state.right)",
        "tests/exchanges/test_methods.py::test_power_sgd_is_the_published_algorithm",
    ),
    Fault(
        "budget never measures",
        "jaxcomp/exchanges/budget.py",
        "is_measured = step >= due",
        "is_measured = step < due",
        "tests/exchanges/test_budget.py"
        "::test_choices_follow_the_gradient_and_nothing_is_compiled_again",
    ),
    # --- Memories ---------------------------------------------------------------------
    Fault(
        "a hundredth of the residual is lost",
        "jaxcomp/memory/error_feedback.py",
        "residual = step.unsent(given)",
        "residual = jax.tree.map(lambda x: 0.99 * x, step.unsent(given))",
        "tests/exchanges/test_plain.py::test_error_feedback_conserves",
    ),
    Fault(
        "zero counts as a positive sign",
        "jaxcomp/core/coding/packing.py",
        "(x > 0).astype(jnp.uint8)",
        "(x >= 0).astype(jnp.uint8)",
        "tests/exchanges/test_zeros.py::test_what_is_frozen_stays_put",
    ),
    Fault(
        "dgc masks no momentum",
        "jaxcomp/memory/dgc.py",
        "kept = [new if chosen else old",
        "kept = [old if chosen else old",
        "tests/memory/test_dgc.py::test_fifty_steps_of_the_formulas",
    ),
    Fault(
        "dgc masks what is charged for others",
        "jaxcomp/memory/dgc.py",
        "out = step.sent if step.own_sent is None else step.own_sent",
        "out = step.sent",
        "tests/memory/test_together.py::test_masking_clears_what_went_out",
    ),
    Fault(
        "a memory around a memory is taken",
        "jaxcomp/memory/_common.py",
        "if exchange.keeper:",
        "if exchange.keeper and False:",
        "tests/memory/test_together.py"
        "::test_a_memory_behind_a_memory_is_right_or_refused",
    ),
    Fault(
        "ef21 forgets its estimate",
        "jaxcomp/memory/ef21.py",
        "estimate = jax.tree.map(jnp.add, state.estimate.value, step.sent)",
        "estimate = step.sent",
        "tests/exchanges/test_guarantees.py",
    ),
    # --- Gossip and local updates -----------------------------------------------------
    Fault(
        "weights of neighbours are off by 10 %",
        "jaxcomp/mixers/gossip/_neighbours.py",
        "difference = weight.astype(mine.dtype) * (theirs - mine)",
        "difference = 0.9 * weight.astype(mine.dtype) * (theirs - mine)",
        "tests/gossip/test_algorithms.py::test_d_psgd_equals_the_reference",
    ),
    Fault(
        "choco believes that all of its message arrived",
        "jaxcomp/mixers/gossip/choco.py",
        "public = plus(state.public, result.sent)",
        "public = plus(state.public, unknown)",
        "tests/gossip/test_algorithms.py::test_it_equals_the_reference",
    ),
    Fault(
        "the outer step forgets the newest difference",
        "jaxcomp/mixers/local/_rounds.py",
        "rate * (d + momentum * b)",
        "rate * b",
        "tests/local/test_local.py::test_rounds_equal_the_reference",
    ),
    # --- Runs -------------------------------------------------------------------------
    Fault(
        "a resumed run has lost its memory and its optimiser",
        "jaxcomp/training/checkpoints.py",
        "state, step = restored.state, restored.step",
        "step = restored.step\n        fresh = parallel.spread(plan.fresh(), workers)\n"
        "        state = restored.state._replace(opt_state=fresh.opt_state)",
        "tests/training/test_loop.py::test_an_interrupted_run_ends_the_same",
    ),
    Fault(
        "a resumed run sees the epoch from its start",
        "jaxcomp/training/feed.py",
        "shares(epoch)[first:, local]",
        "shares(epoch)[:, local]",
        "tests/training/test_loop.py::test_an_interrupted_run_ends_the_same",
    ),
    Fault(
        "a row that a kill has torn counts",
        "jaxcomp/runs/table.py",
        'text[: text.rfind("\\n") + 1]',
        "text",
        "tests/runs/test_table.py"
        "::test_a_torn_row_never_counts_and_nothing_is_glued_to_it",
    ),
    Fault(
        "the only process of a host takes one GPU",
        "jaxcomp/parallel/cluster.py",
        "if size == 1 or is_bound:",
        "if is_bound:",
        "tests/launch/test_cluster.py",
    ),
    Fault(
        "a launch forgets the exit code of its first failure",
        "jaxcomp/cli/supervise.py",
        "code = _exit_code(running[failed])",
        "code = 1",
        "tests/launch/test_launch.py",
    ),
    Fault(
        "processes with different configs train together",
        "jaxcomp/parallel/cluster.py",
        "if text != first[1]:",
        "if not text:",
        "tests/launch/test_training.py::test_processes_with_other_configs_are_refused",
    ),
    Fault(
        "two processes hold one folder",
        "jaxcomp/runs/open_run.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "tests/runs/test_folder.py"
        "::test_a_folder_is_held_by_one_and_the_other_is_told_by_whom",
    ),
    Fault(
        "what each worker keeps is declared the same on all",
        "jaxcomp/parallel/placing.py",
        "lambda node: PerWorker(0) if is_per_worker(node) else None,",
        "lambda node: PerWorker(None) if is_per_worker(node) else None,",
        "tests/test_parallel.py::test_axes_follow_the_marks",
    ),
    Fault(
        "pmap gives all workers the residual of one",
        "jaxcomp/parallel/mapping.py",
        '{"in_axes": paired, "out_axes": (out_axes, 0)}',
        '{"in_axes": paired, "out_axes": (out_axes, None)}',
        "tests/test_drop_ins.py"
        "::test_residuals_are_each_workers_own_whatever_the_axes_say",
    ),
    Fault(
        "devices with other shards go on alone where a gradient is bad",
        "jaxcomp/transforms/jit/data_parallel.py",
        "return (jax.lax.pmax(is_bad, cut) if cut else is_bad) == 0",
        "return is_bad == 0",
        "tests/test_data_parallel.py"
        "::test_a_bad_element_stops_the_devices_that_hold_other_shards",
    ),
    Fault(
        "gathered messages are not known to be the same on all workers",
        "jaxcomp/parallel/collectives.py",
        'to = "invarying" if is_typed(name) else "varying"',
        'to = "varying"',
        "tests/test_border.py::test_types_of_every_method_pass",
    ),
    Fault(
        "gradients that are summed already are averaged once more",
        "jaxcomp/parallel/checks.py",
        "if not names <= varies_over(leaf):",
        "if not names:",
        "tests/test_border.py::test_what_is_summed_already_is_refused",
    ),
    Fault(
        "a worker with a bad gradient spoils a part of it only",
        "jaxcomp/transforms/nonfinite.py",
        "result, new = update(shown, state)",
        "result, new = update(tree, state)",
        "tests/test_marks.py",
    ),
    Fault(
        "a part of a gradient is exchanged with the state of another part",
        "jaxcomp/exchanges/overlap.py",
        "return [sorted(part) for part in found if part] or [[]]",
        "return [part for part in found if part] or [[]]",
        "tests/test_overlap.py::test_parts_give_the_same_numbers",
    ),
    Fault(
        "what is bad is kept for the next step",
        "jaxcomp/transforms/nonfinite.py",
        "return new if is_clock(new) else jnp.where(applied, new, old)",
        "return new",
        "tests/test_marks.py",
    ),
    Fault(
        "a bad gradient becomes a zero that nobody sees",
        "jaxcomp/training/step.py",
        "instead = 0.0 if has_own_model else jnp.nan",
        "instead = 0.0",
        "tests/training/test_loop.py::test_a_nan_step_can_be_skipped",
    ),
    Fault(
        "a variance counts its gradients, and dense steps count the run's",
        "jaxcomp/transforms/optimizers.py",
        "learns = state.clock.step < dense_steps",
        "learns = state.learnt < dense_steps",
        "tests/training/test_clock.py"
        "::test_the_variance_of_one_bit_adam_learns_from_whole_gradients_alone",
    ),
    Fault(
        "1-bit Adam compresses one step too early",
        "jaxcomp/transforms/optimizers.py",
        "state.step < dense_steps,",
        "state.step < dense_steps - 1,",
        "tests/optimizers/test_optimizers.py",
    ),
    Fault(
        "a damaged checkpoint is used",
        "jaxcomp/core/files.py",
        "if _digest(folder / name) != digest:",
        "if _digest(folder / name) == '':",
        "tests/training/test_checkpoint.py",
    ),
    Fault(
        "a new checkpoint is written over the one before it",
        "jaxcomp/checkpoint/save.py",
        "return 1 if ARRAYS[0] in files.listed(folder) else 0",
        "return 0",
        "tests/test_checkpoint.py",
    ),
    Fault(
        "a checkpoint of a later format is taken for one of today",
        "jaxcomp/checkpoint/save.py",
        "if version > FORMAT:",
        "if version < 0:",
        "tests/test_checkpoint.py::test_manifests_of_others_are_refused",
    ),
    Fault(
        "a batch is not given what the last one has left",
        "jaxcomp/training/step.py",
        "carry=like(state.carry, carry)",
        "carry=state.carry",
        "tests/training/test_tasks.py::test_each_worker_hands_on_its_own_state",
    ),
    Fault(
        "counters are pinned to a device by a restore",
        "jaxcomp/checkpoint/leaves.py",
        'is_free = not getattr(like, "committed", True)',
        "is_free = False",
        "tests/test_checkpoint.py",
    ),
    Fault(
        "gradients that are averaged before the exchange pass",
        "jaxcomp/transforms/check_state.py",
        "return [_ALIKE.format(count=count)] if count > 1 else []",
        "return []",
        "tests/test_marks.py",
    ),
    Fault(
        "masked leaves are each worker's own, and nobody says so",
        "jaxcomp/parallel/checks.py",
        "    if masked:\n",
        "    if masked and False:\n",
        "tests/test_transform.py",
    ),
    Fault(
        "bytes of a gathered message are counted as if nobody forwarded it",
        "jaxcomp/wire/program.py",
        '"all-gather": lambda n: n - 1,',
        '"all-gather": lambda n: 1,',
        "tests/exchanges/test_messages.py::test_gathered_traffic_does_grow",
    ),
    Fault(
        "replicated params share a message with shards of others",
        "jaxcomp/transforms/jit/layout.py",
        "cuts = [axes_of(spec, grid.mesh) for spec in specs]",
        "cuts = [axes_of(P(grid.mesh.axis_names[1:]), grid.mesh) for spec in specs]",
        "tests/test_data_parallel.py::test_replicas_stay_equal",
    ),
    Fault(
        "all shards of a tensor draw the same",
        "jaxcomp/transforms/jit/layout.py",
        "if layout.cut:  # shards of a tensor draw different random numbers",
        "if False:  # shards of a tensor draw different random numbers",
        "tests/test_data_parallel.py::test_shards_of_a_tensor_draw_apart",
    ),
    Fault(
        "a mixer on a mesh is told of other starts",
        "jaxcomp/transforms/jit/decentralised.py",
        "link.init(laid.without_axis(models))",
        "link.init(jax.tree.map(lambda m: 0 * m[0], models))",
        "tests/test_decentralised.py::test_models_and_state_are_those_of_pmap",
    ),
    Fault(
        "a model is gathered to compute its gradient",
        "jaxcomp/transforms/jit/layout.py",
        "axis_names=set(self.data) if only_data else set(),",
        "axis_names=set(self.mesh.axis_names),",
        "tests/test_data_parallel.py"
        "::test_a_model_axis_carries_what_it_did_and_the_data_axis_two_messages",
    ),
    Fault(
        "bytes of a program that could not be read pass for read ones",
        "jaxcomp/training/programs.py",
        "found, unread = _traced(plan, stage), str(error)",
        "found = _traced(plan, stage)",
        "tests/training/test_loop.py"
        "::test_a_program_that_cannot_be_read_is_told_everywhere",
    ),
    Fault(
        "a program's groups are taken along the other axes of its mesh",
        "jaxcomp/wire/bytes.py",
        "table.transpose(outside + inside)",
        "table.transpose(inside + outside)",
        "tests/test_wire.py::test_groups_are_read_in_every_notation",
    ),
    Fault(
        "kernels of a loop are counted once, however often it runs",
        "jaxcomp/wire/program.py",
        "total += rounds * inside[body]",
        "total += inside[body]",
        "tests/targets/test_reading.py::test_a_program_of_gpus_is_read",
    ),
    Fault(
        "an operand that is nowhere counts no bytes",
        "jaxcomp/wire/bytes.py",
        "shapes[operand.name]",
        'shapes.get(operand.name, "u8[0]")',
        "tests/test_wire.py::test_what_cannot_be_read_is_an_error_with_its_line",
    ),
    Fault(
        "what merged workers owe is added instead of averaged",
        "jaxcomp/checkpoint/resize.py",
        "total += weight * (rows[j]",
        "total += (rows[j]",
        "tests/test_resizing.py::test_what_a_memory_owes_stays",
    ),
    Fault(
        "with other workers, choco takes models for what neighbours know of them",
        "jaxcomp/mixers/gossip/choco.py",
        "pull=near.first_pulls(state.public, graph)",
        "pull=near.first_pulls(params, graph)",
        "tests/test_resizing.py::test_mixers_keep_the_mean_model_and_what_is_owed",
    ),
    # --- Tasks ------------------------------------------------------------------------
    Fault(
        "a column of a text goes on with the state of the epoch before",
        "jaxcomp/training/tasks/language.py",
        "jnp.where(_along(first, old) > 0, new, old)",
        "jnp.where(_along(first, old) < 0, new, old)",
        "tests/training/test_language.py::test_a_column_begins_anew_in_each_epoch",
    ),
    Fault(
        "the best perplexity is the largest",
        "jaxcomp/training/tasks/task.py",
        "(value > best if self.larger else value < best)",
        "value > best",
        "tests/training/test_language.py::test_a_measure_knows_what_is_better",
    ),
    # --- Reports ----------------------------------------------------------------------
    Fault(
        "names of a config are written into the page as they are",
        "jaxcomp/report/page.py",
        "autoescape=True",
        "autoescape=False",
        "tests/report/test_report_page.py::test_hostile_text_is_escaped",
    ),
    Fault(
        "the note of a comparison is lost when it is written again",
        "jaxcomp/report/comparison.py",
        "note = kept_note(file)",
        'note = ""',
        "tests/report/test_report_compare.py::test_a_note_is_kept_until_it_is_replaced",
    ),
    Fault(
        "a band over the seeds leaves out the lowest",
        "jaxcomp/report/charts.py",
        "(_over(groups, f, value) for f in (np.mean, np.min,",
        "(_over(groups, f, value) for f in (np.mean, np.mean,",
        "tests/report/test_report_compare.py"
        "::test_runs_that_differ_in_the_seed_are_one_line",
    ),
    # --- Data -------------------------------------------------------------------------
    Fault(
        "pictures have the same windows in every epoch",
        "jaxcomp/data/pictures.py",
        "SeedSequence([self.seed, self.epoch, place])",
        "SeedSequence([self.seed, 0, place])",
        "tests/data/test_pictures.py",
    ),
    Fault(
        "all augmentations of a row share one key",
        "jaxcomp/data/augmentations.py",
        "jax.random.split(key, len(links))[number]",
        "jax.random.split(key, len(links))[0]",
        "tests/data/test_augment.py",
    ),
    Fault(
        "batches that are taken ahead come in another order",
        "jaxcomp/training/feed.py",
        """                if len(waiting) > ahead:
                    yield waiting.popleft().result()""",
        """                if len(waiting) > ahead:
                    yield waiting.pop().result()""",
        "tests/training/test_pictures.py",
    ),
    # --- Optimisation -----------------------------------------------------------------
    Fault(
        "decay in the gradient comes before clipping",
        "jaxcomp/training/optimizers.py",
        "[*make_clip(config.clip, method.axis, config.memory, config.mixer), *links]",
        "[*links[:1], *make_clip(config.clip, method.axis, '', ''), *links[1:]]",
        "tests/training/test_decay.py",
    ),
    Fault(
        "the average of the weights is a step late",
        "jaxcomp/training/step.py",
        "moved(unmark(state.ema), moved_to, ema, state.step)",
        "moved(unmark(state.ema), params, ema, state.step)",
        "tests/training/test_ema.py",
    ),
    Fault(
        "clocks begin again with another optimiser",
        "jaxcomp/training/state.py",
        "return Clock(jnp.copy(exchanged.step))",
        "return leaf",
        "tests/training/test_regimes.py::test_arrays_of_the_same_name_and_shape_go_on",
    ),
    Fault(
        "epochs begin again where the batch changes",
        "jaxcomp/training/segments.py",
        '"epoch": self.epoch * self.horizon.steps_per_epoch,',
        '"epoch": 0,',
        "tests/training/test_calendar.py",
    ),
    Fault(
        "pictures of the first rectangle alone are evaluated",
        "jaxcomp/data/pictures.py",
        "for places, pictures in images.groups:",
        "for places, pictures in images.groups[:1]:",
        "tests/data/test_rectangles.py",
    ),
    # --- Processes --------------------------------------------------------------------
    Fault(
        "a run ends with the reader of its output",
        "jaxcomp/core/output.py",
        "except (OSError, ValueError) as error:",
        "except ValueError as error:",
        "tests/runs/test_folder.py::test_lost_output_is_noted_and_ends_no_run",
    ),
    Fault(
        "processes outlive a launcher that is killed",
        "jaxcomp/cli/supervise.py",
        "process_group=guard.pid",
        "process_group=0",
        "tests/launch/test_launch.py"
        "::test_the_processes_end_with_a_launcher_that_is_killed",
    ),
    # --- Folders ----------------------------------------------------------------------
    Fault(
        "the lock is looked at, and the tables stay in memory",
        "jaxcomp/runs/open_run.py",
        'for path in (*folder.glob("*.csv"), folder):',
        "for path in (folder,):",
        "tests/training/test_mishaps.py"
        "::test_tables_last_through_a_power_cut_before_the_checkpoint_does",
    ),
    Fault(
        "a run goes on from a checkpoint of another config",
        "jaxcomp/training/checkpoints.py",
        "check_config(found, config, elastic=elastic)",
        "pass",
        "tests/training/test_mishaps.py"
        "::test_checkpoints_of_another_config_are_refused",
    ),
    Fault(
        "a sweep builds no run before the first one begins",
        "jaxcomp/cli/sweep.py",
        "    check_runs(job)\n",
        "    del check_runs\n",
        "tests/sweeps/test_running.py"
        "::test_every_value_is_checked_before_the_first_run",
    ),
]
