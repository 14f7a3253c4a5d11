"""Mutants (mutations.py) in which nothing may be found, with reasons.

A program, and the call that was removed from it. test_mutations.py fails if one of them becomes
wrong, has a finding, or is not a mutant any more.
"""

__all__ = ["HARMLESS", "MISSED", "UNDECIDED"]

_Names = list[tuple[str, str]]

_READY = "_ready()"
_SYNCHRONIZE = "_module.synchronize()"
_BACK = "side.wait_stream(current())"
_FORTH = "current().wait_stream(side)"

HARMLESS: dict[str, _Names] = {
    "Only the stream that computes it uses it, or another wait comes before others do.": [
        *(
            (program, _READY)
            for program in (
                "result_is_read_before_the_copy_is_over",
                "source_of_a_copy_is_written_at_indices_of_the_device",
                "staging_buffer_is_refilled",
                "part_of_the_staging_buffer_is_refilled",
                "weights_are_changed_while_they_are_uploaded",
                "copy_on_the_host_reads_too_early",
                "memory_of_the_side_stream_is_read_by_the_main_stream",
                "temporary_of_a_loop",
                "weights_are_replaced",
                "tensor_is_set_to_another_storage",
                "first_used_on_another_stream",
                "first_read_on_another_stream",
                "copy_is_recorded_instead",
                "input_of_a_graph_is_freed",
                "double_buffer_is_refilled_too_early",
                "gradients_are_used_on_another_stream",
                "hook_uses_a_stream_of_its_own",
                "fallback_writes",
                "copy_on_the_device",
                "copy_that_converts",
                "list_of_tensors_is_written_at_once",
                "optimizer_steps_on_another_stream",
                "out_variant_writes",
                "index_put_writes",
                "item_reads_a_result",
                "event_of_the_step_before",
                "gradients_are_zeroed_while_they_are_sent",
                "staging_buffer_of_two_streams",
                "result_of_a_replay_is_read_on_another_stream",
                "input_of_a_replay_is_still_written",
                "weights_are_loaded_during_the_forward",
                "event_is_recorded_again_after_the_wait",
                "double_buffer_with_events",
                "memory_of_a_side_stream_goes_back_to_it",
                "waited_then_allocated_with_nothing_between",
                "numbers_are_drawn_on_two_streams",
                "graph_is_replayed_between_other_work",
                "one_graph_is_replayed_on_two_streams",
                "graph_forks_and_joins",
                "graph_with_temporaries_is_replayed",
                "fallback_is_called_again_and_again",
                "context_of_a_stream_that_is_current",
                "streams_of_the_pool_come_again",
                "saved_and_loaded",
                "accumulated_over_streams_in_turn",
            )
        ),
        *(
            (program, f"{_READY}  # 2")
            for program in (
                "weights_are_replaced",
                "tensor_is_set_to_another_storage",
                "hook_uses_a_stream_of_its_own",
                "copy_that_converts",
                "list_of_tensors_is_written_at_once",
                "numbers_are_drawn_on_two_streams",
            )
        ),
        ("number_of_the_host_is_read_too_early", "_ready(1)"),
        ("convolution_reads", "_ready(1, 1, 8, 8)"),
        ("moving_average_is_written_by_the_forward", "_ready(8, 4)"),
        ("prefetcher_uploads_into_what_the_model_reads", "_ready(1)"),
        ("prefetched_batch_is_used_before_it_is_there", "_ready(1)"),
        ("weights_are_recorded_for_the_stream_that_brings_them", "_ready(4, SIZE)"),
        ("weights_are_used_before_they_are_there", "_ready(4, SIZE)"),
        ("activation_goes_while_the_backward_pass_uses_it", _READY),
        ("activation_is_taken_before_it_is_computed", _READY),
        ("weights_are_loaded_during_the_forward", "_ready(SIZE, SIZE)"),
        ("prefetched_batch_goes_back_to_the_loader", _SYNCHRONIZE),
        ("prefetcher_that_waits_and_records", _SYNCHRONIZE),
        ("weights_are_changed_while_they_are_drawn_from", _SYNCHRONIZE),
        ("factor_of_a_sparse_product_is_overwritten", "_ready(8, 8)"),
    ],
    "Nothing comes after it that it would order.": [
        *(
            (program, _SYNCHRONIZE)
            for program in (
                "result_is_read_before_the_copy_is_over",
                "result_is_read_after_a_wait_for_another_stream",
                "source_of_a_copy_is_written_at_indices_of_the_device",
                "staging_buffer_is_refilled",
                "part_of_the_staging_buffer_is_refilled",
                "gradients_are_used_by_an_optimizer_of_the_host",
                "weights_are_changed_while_they_are_uploaded",
                "copy_on_the_host_reads_too_early",
                "number_of_the_host_is_read_too_early",
                "input_of_a_graph_is_freed",
                "asynchronous_copy_from_the_host_writes",
                "staging_buffer_of_two_streams",
                "result_of_a_replay_is_read_on_another_stream",
                "input_of_a_replay_is_still_written",
                "weights_are_loaded_during_the_forward",
                "two_streams_read",
                "host_waits_until_a_gate_is_reached",
                "odd_and_even_columns",
                "left_and_right_half_of_each_row",
                "neighboring_ranges",
                "metadata_of_a_tensor_that_is_written",
                "numbers_are_drawn_on_two_streams",
                "thread_waits_on_the_host_for_another",
                "graph_is_replayed_between_other_work",
                "graph_forks_and_joins",
                "empty_tensors",
                "tensors_of_an_expanded_dimension",
            )
        ),
        ("prefetched_batch_goes_back_to_the_loader", f"{_SYNCHRONIZE}  # 2"),
        ("prefetcher_that_waits_and_records", f"{_SYNCHRONIZE}  # 2"),
        ("offloaded_weights_are_dropped", "side.synchronize()  # 2"),
        ("copies_between_devices", "_module.synchronize(0)"),
        ("copies_between_devices", "_module.synchronize(1)"),
        ("first_used_on_another_stream", _FORTH),
        ("first_read_on_another_stream", _FORTH),
        ("module_moves_to_the_device", _FORTH),
        ("hook_uses_a_stream_of_its_own", "current().wait_stream(comm)"),
        ("allocated_where_it_is_used_first", _BACK),
        ("backward_on_a_side_stream", _BACK),
        ("forward_on_two_streams_and_one_backward", _BACK),
        ("event_is_recorded_again_after_the_wait", "done.record()  # 2"),
        ("event_is_recorded_again_after_the_wait", "current().wait_event(done)  # 2"),
        ("item_reads_a_result", "total.item()"),
        ("blocking_copy_to_the_host_reads", "x.cpu()"),
        ("graph_with_temporaries_is_replayed", "y.item()"),
    ],
    "Another wait orders the same.": [
        ("wait_comes_after_the_next_use", _FORTH),
        ("copy_is_recorded_instead", _BACK),
        ("source_of_a_copy_is_written_at_indices_of_the_device", _BACK),
        ("gradients_are_zeroed_while_they_are_sent", "comm.wait_stream(current())"),
        ("one_graph_is_replayed_on_two_streams", _SYNCHRONIZE),
        ("fallback_is_called_again_and_again", _BACK),
        ("fallback_is_called_again_and_again", f"{_BACK}  # 2"),
        # The copies of the parameters, which block.
        ("module_moves_to_the_device", _BACK),
        # The copy of the other argument, which blocks.
        ("saved_and_loaded", "torch.load(file).cpu()"),
        # The autograd engine makes the forward's stream wait for that of the first gradient.
        ("backward_on_a_side_stream", _FORTH),
    ],
    "The event is recorded again before it is waited for.": [
        ("event_was_recorded_before_the_last_use", "done.record()"),
        ("event_is_recorded_before_the_work", "done.record()"),
        ("host_waited_for_an_earlier_record", "done.record()"),
        ("event_of_the_step_before", "done.record()  # 2"),
    ],
    "Nothing is allocated after the memory has been freed.": [
        ("stream_has_two_names", "y.record_stream(current())"),
    ],
    "There is nothing yet to wait for.": [("wait_comes_before_the_work", _FORTH)],
    "The tensor is the host's, so reading it waits for nothing.": [
        ("number_of_the_host_is_read_too_early", "host.item()"),
    ],
    "The right form of the program does not run it.": [("wait_in_the_wrong_direction", _BACK)],
}

# What matters and is not found, with reasons.
MISSED: dict[str, _Names] = {}

# What may be found, and need not be.
UNDECIDED: dict[str, _Names] = {
    "Whether the loader allocates after the free is up to the threads.": [
        ("threads_hand_over_by_a_queue", "x.record_stream(current())"),
    ],
}
