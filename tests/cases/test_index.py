"""Where each of the sixty retold reports is tested; an index that cannot go stale.

Kind i has a file of its own beside this one. Kind j (prompt programs) belongs to a part that is not
in the HTTP server.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = "tests/cases"
CORE = "tests/unit/core"
TEXT = "tests/unit/text"
BATCH = "tests/batch"
ELSEWHERE = "elsewhere"

ALL_IDS = [
    f"{kind}{number}"
    for kind, last in zip("abcdefghijkl", (5, 9, 5, 7, 11, 17, 9, 9, 13, 9, 5, 9), strict=True)
    for number in range(1, last + 1, 2)
]

WHERE: dict[str, tuple[str, ...]] = {
    "a1": (
        f"{CASES}/test_a_leaks.py::test_a1_nobody_computes_for_a_client_that_has_left",
        "tests/server/test_disconnect.py::test_between_two_events",
        "tests/server/test_disconnect.py::test_while_a_whole_answer_is_made",
    ),
    "a3": (
        f"{CORE}/test_scheduler.py::test_a3_every_slot_is_freed_once_however_a_request_ends",
        f"{CORE}/test_invariants.py::test_a_broken_invariant_is_found_and_named",
        "tests/engine/test_sync_engine.py::test_a_stop_string_leaves_nothing_running",
    ),
    "a5": (
        f"{CORE}/test_scheduler.py::test_a5_an_abort_in_the_middle_of_a_chunk_waits_for_the_chunk",
        f"{CASES}/test_a_leaks.py"
        "::test_a5_a_prompt_that_is_given_up_between_its_chunks_leaves_nothing",
    ),
    "b1": (
        "tests/server/test_echo.py::test_a_long_prompt_is_told_whole_whether_it_is_cached_or_not",
    ),
    "b3": (
        f"{CORE}/test_scheduler_reuse.py"
        "::test_b3_a_prompt_that_is_cached_whole_still_computes_one_token",
        f"{CASES}/test_b_cached.py::test_b3_a_prompt_of_any_length_can_be_asked_twice",
    ),
    "b5": (
        f"{CORE}/test_radix_tree.py"
        "::test_namespaces_share_nothing_even_if_a_salt_is_named_like_an_adapter",
        f"{CORE}/test_radix_tree.py"
        "::test_eviction_in_one_namespace_frees_no_locked_block_of_another",
    ),
    "b7": (
        f"{CORE}/test_scheduler_reuse.py"
        "::test_b7_requests_that_decode_the_same_tokens_end_up_with_the_same_blocks",
    ),
    "b9": (
        f"{CORE}/test_scheduler_reuse.py::test_b9_a_flush_leaves_a_running_request_alone",
        f"{CASES}/test_b_cached.py::test_b9_a_flush_never_hurts_a_running_stream",
    ),
    "c1": (
        f"{CORE}/test_radix_tree.py"
        "::test_c1_the_matched_node_itself_survives_an_eviction_of_everything",
    ),
    "c3": (
        f"{CORE}/test_scheduler_limits.py"
        "::test_c3_a_request_that_finds_its_own_blocks_again_is_not_a_hit",
        "tests/engine/test_metrics.py::test_preemption_counts_neither_hits_nor_tokens_twice",
    ),
    "c5": (
        f"{CORE}/test_radix_tree.py::test_c5_a_split_keeps_the_evictable_count_right",
        f"{CORE}/test_scheduler_reuse.py"
        "::test_c5_a_pool_full_of_evictable_blocks_serves_every_allocation",
        f"{CORE}/test_radix_tree_machine.py::TestTree",
    ),
    "d1": (
        f"{CORE}/test_scheduler_limits.py"
        "::test_d1_a_request_larger_than_the_pool_is_refused_with_the_numbers",
        f"{CASES}/test_d_limits.py"
        "::test_d1_a_prompt_larger_than_the_pool_is_refused_and_holds_nobody_up",
    ),
    "d3": (
        f"{CORE}/test_scheduler_limits.py"
        "::test_d3_a_lone_request_ends_in_a_pool_of_exactly_its_size",
        f"{CASES}/test_d_limits.py::test_d3_a_lone_request_that_fills_the_pool_ends_by_length",
    ),
    "d5": (
        f"{CORE}/test_scheduler_limits.py"
        "::test_d5_a_crowd_in_a_small_pool_is_served_with_few_preemptions",
        f"{CASES}/test_d_limits.py::test_d5_preempted_requests_return_every_token_once",
    ),
    "d7": (f"{CASES}/test_d_limits.py::test_d7_a_limit_that_is_passed_is_told_with_its_numbers",),
    "e1": (
        f"{TEXT}/test_detokenizer.py"
        "::test_a_character_of_several_tokens_comes_out_with_its_last_one",
        f"{CASES}/test_e_streams.py::test_e1_characters_of_several_tokens_arrive_whole",
    ),
    "e3": (
        f"{TEXT}/test_stop_strings.py::test_nothing_of_a_stop_string_over_several_chunks_is_sent",
        f"{CASES}/test_e_streams.py"
        "::test_e3_nothing_of_a_stop_string_is_sent_before_it_is_known_to_be_none",
    ),
    "e5": ("tests/server/test_generation.py::test_a_usage_chunk_comes_last_and_only_if_asked_for",),
    "e7": (f"{CASES}/test_e_streams.py::test_e7_every_choice_ends_once_after_all_of_its_text",),
    "e9": (f"{CASES}/test_e_streams.py::test_e9_every_stream_ends_with_done_and_closes",),
    "e11": (
        f"{CASES}/test_e_streams.py::test_e11_clients_that_never_read_cost_little_memory",
        "tests/engine/test_async_engine.py"
        "::test_a_slow_reader_gets_merged_deltas_and_the_same_text",
    ),
    "f1": (
        f"{CASES}/test_f_sampling.py::test_f1_a_seed_decides_whatever_shares_the_batch",
        f"{CASES}/test_f_sampling.py::test_f1_a_seed_decides_through_preemption",
    ),
    "f3": (f"{CASES}/test_f_sampling.py::test_f3_a_bias_is_obeyed_by_its_own_request",),
    "f5": ("tests/server/test_echo.py::test_no_tokens_may_be_asked_for",),
    "f7": (
        "tests/server/test_routes.py::test_an_empty_prompt_hurts_nobody_else",
        f"{CASES}/test_f_sampling.py::test_f7_an_empty_chat_is_refused_and_hurts_nobody",
    ),
    "f9": (
        f"{CASES}/test_f_sampling.py"
        "::test_f9_a_penalty_sees_the_same_tokens_cold_warm_and_after_a_longer_prompt",
    ),
    "f11": (
        "tests/server/test_logprobs.py::test_no_temperature_makes_a_number_that_is_none",
        "tests/runtime/test_sampler.py::test_a_row_that_is_not_finite_fails_alone",
    ),
    "f13": ("tests/server/test_logprobs.py::test_counts_out_of_bounds_are_refused_by_name",),
    "f15": (
        f"{CASES}/test_f_sampling.py::test_f15_min_tokens_holds_every_end_back",
        "tests/runtime/test_logit_edits.py::test_every_stop_id_is_held_back_until_min_tokens",
    ),
    "f17": (
        f"{TEXT}/test_control_tokens.py::test_a_typed_control_token_is_plain_text",
        f"{CASES}/test_f_sampling.py::test_f17_typed_control_tokens_are_plain_text",
    ),
    "g1": (
        f"{TEXT}/test_chat_template.py::test_a_prompt_has_one_bos_whoever_puts_it_there",
        f"{CASES}/test_g_chat.py::test_g1_a_chat_and_its_rendered_text_have_the_same_ids",
    ),
    "g3": (
        f"{TEXT}/test_chat_template.py::test_tool_calls_need_no_content",
        "tests/server/test_tool_calls.py::test_a_turn_of_calls_needs_no_content",
    ),
    "g5": (
        f"{TEXT}/test_chat_template.py::test_a_templates_refusal_reaches_the_caller",
        f"{CASES}/test_g_chat.py::test_g5_a_templates_refusal_reaches_the_caller",
    ),
    "g7": (
        "tests/server/test_tool_calls.py::test_calls_that_the_model_makes_by_itself_are_found",
        "tests/server/test_chat_writer.py"
        "::test_parallel_calls_keep_their_own_index_and_tell_their_name_once",
    ),
    "g9": (
        f"{TEXT}/test_continued_chat.py"
        "::test_the_prompt_ends_with_the_last_message_though_an_earlier_one_is_alike",
        f"{TEXT}/test_continued_chat.py::test_a_continuation_that_makes_no_sense_is_refused",
    ),
    "h1": (f"{CASES}/test_h_structured.py::test_h1_what_is_no_schema_is_refused_and_hurts_nobody",),
    "h3": (f"{CASES}/test_h_structured.py::test_h3_a_pattern_is_enforced_or_refused",),
    "h5": (
        f"{CASES}/test_h_structured.py::test_h5_references_to_anywhere_are_followed",
        f"{CASES}/test_h_structured.py::test_h5_references_to_nothing_are_refused",
    ),
    "h7": (f"{CASES}/test_h_structured.py::test_h7_forced_text_changes_no_value",),
    "h9": (
        f"{CASES}/test_h_structured.py"
        "::test_h9_each_request_and_each_choice_has_a_grammar_of_its_own",
    ),
    **{f"i{number}": (ELSEWHERE,) for number in range(1, 14, 2)},
    **{f"j{number}": (ELSEWHERE,) for number in range(1, 10, 2)},
    "k1": (f"{BATCH}/test_k_cases.py::test_k1_a_line_that_is_no_request_hurts_no_other",),
    "k3": (
        f"{BATCH}/test_k_cases.py::test_k3_no_line_is_left_out_of_the_counts",
        f"{BATCH}/test_k_cases.py::test_k3_a_file_without_requests_is_done_at_once",
    ),
    "k5": (
        f"{BATCH}/test_k_cases.py::test_k5_a_run_that_is_killed_at_any_moment_can_be_gone_on_with",
        f"{BATCH}/test_writer.py::test_wherever_a_file_was_cut_the_rest_can_be_added",
    ),
    "l1": (
        "tests/models/test_loader.py::test_a_tied_head_is_the_embedding",
        "tests/models/test_loader.py::test_an_untied_config_without_a_head_is_refused",
        "tests/models/test_loader.py::test_every_parameter_is_written_exactly_once",
    ),
    "l3": (
        f"{CASES}/test_l_loading.py::test_l3_rows_that_pad_the_head_are_never_sampled_nor_told_of",
    ),
    "l5": (
        f"{TEXT}/test_chat_template.py::test_without_a_template_the_caller_learns_how_to_give_one",
        f"{TEXT}/test_chat_template.py::test_templates_of_the_config_are_chosen_by_name",
        f"{CASES}/test_l_loading.py::test_l5_a_base_model_completes_and_says_why_it_does_not_chat",
    ),
    "l7": (
        "tests/models/test_rotary.py::test_tables_equal_transformers_in_every_layout",
        "tests/models/test_config.py::test_what_the_decoder_cannot_do_is_refused_by_name",
    ),
    "l9": (
        "tests/models/test_loader.py::test_a_missing_shard_is_named",
        "tests/models/test_loader.py::test_a_file_outside_the_index_is_left_out_with_a_notice",
        "tests/models/test_loader.py::test_without_an_index_all_files_are_read",
    ),
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Return what a file defines or assigns at its top, of any kind."""
    names = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def test_there_are_sixty_cases_and_each_is_in_the_index_once() -> None:
    assert len(ALL_IDS) == 60
    assert sorted(WHERE) == sorted(ALL_IDS)
    assert all(WHERE.values())


@pytest.mark.parametrize("case", ALL_IDS)
def test_the_tests_of_a_case_are_where_the_index_says(case: str) -> None:
    for node in WHERE[case]:
        if node != ELSEWHERE:
            path, name = node.split("::")
            assert name in names_in(path), node


def test_what_is_tested_elsewhere_is_of_two_kinds() -> None:
    assert {case[0] for case, nodes in WHERE.items() if ELSEWHERE in nodes} == set("ij")
    tested = {name.split("_")[1] for name in names_in(f"{CASES}/test_i_http.py") if "_" in name}
    assert {f"i{number}" for number in range(1, 14, 2)} <= tested
