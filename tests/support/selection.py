"""Which tests `make test` and .ci/run leave out, and which `make quick` takes.

A line names a test of a file; `*` stands for anything. Words after `=` are parametrizations: in
SLOW and LONG those that stay where they are, in QUICK those that are taken. A line, or a word, that
stands for no test is an error where everything is collected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

SLOW = """
conformance/test_command.py::test_a_driver_that_is_broken_is_told
# What takes whole programs, many processes or a server of its own: .ci/run shows it once.
django/test_suite.py::test_the_suite
django/test_projects.py::test_without_addresses_all_is_checked_and_migrated
django/test_projects.py::test_a_check_names_the_command_of_each_connection
django/test_projects.py::test_a_check_says_once_which_connection_cannot_be_used = memory-*
django/test_projects.py::test_a_line_of_a_log_is_written_once
django/test_suite.py::test_a_schedule_in_the_jobs_of_an_app
django/test_suite.py::test_a_test_database_in_memory
web/browser/test_smoke.py::*
web/test_api.py::test_a_fuzzer_finds_nothing_that_the_document_does_not_say
web/test_command.py::test_one_worker_is_quieted_scaled_and_stopped
web/test_command.py::test_an_open_page_is_told_what_changes
console/test_failed.py::test_a_reader_that_has_enough_is_no_error
console/test_migrate_servers.py::*
examples/test_api_client.py::test_everything_is_fetched_at_the_pace_the_service_allows
examples/test_frameworks.py::test_fastapi_answers_and_a_worker_does_the_work
examples/test_stdlib_index.py::*
examples/test_webapp.py::*
examples/test_order_pipeline.py::*
console/test_batches.py::test_it_is_followed_while_a_worker_works
testing/test_plugin.py::test_an_installed_package_brings_it_and_it_imports_nothing_heavy
testing/test_documentation.py::test_a_page_does_what_it_says
benchmarks/test_benchmarks.py::test_a_folder_without_qframe_is_no_checkout
plugins/test_list_driver.py::test_one_that_cannot_be_loaded_is_one_line
drivers/database/test_many_workers.py::*
drivers/rabbitmq/test_lost.py::test_a_server_that_stands_still_is_noticed
drivers/rabbitmq/test_lost.py::test_a_server_without_memory_takes_nothing_and_loses_nothing
drivers/rabbitmq/test_lost.py::test_heartbeats_are_sent_beside_a_running_job
drivers/rabbitmq/test_lost.py::test_the_server_is_killed_and_started_again
drivers/rabbitmq/test_messages.py::test_a_message_that_is_too_large_is_refused
drivers/redis/test_bad_members.py::test_a_member_of_64_megabytes_is_failed_with_its_bytes
drivers/test_ending.py::*
worker/test_redis_faults.py::*
worker/test_beanstalkd_faults.py::*
worker/test_bounds_faults.py::*
worker/test_usage.py::test_a_file_that_may_not_grow
worker/test_completing.py::test_no_handler_runs_twice_because_its_start_came_late
worker/test_timeouts.py::test_an_alarm_during_a_driver_call_leaves_the_connection_whole
worker/test_globs.py::test_a_backend_that_cannot_list_its_queues_wants_names
worker/test_globs.py::test_a_worker_with_no_queue_wakes_for_a_signal
worker/test_timeouts.py::test_a_failed_hook_that_hangs_ends_the_worker_not_the_record
worker/test_slots.py::test_a_blocked_loop_costs_nobody_its_lease_and_is_named
worker/test_slots.py::test_a_pool_settles_all_that_a_dead_worker_ran
worker/test_isolation_many.py::test_a_pool_settles_all_that_a_dead_worker_ran
worker/test_isolation_many.py::test_a_late_job_ends_no_worker_of_a_pool
worker/test_isolation_many.py::test_one_that_*
worker/test_isolation_many.py::test_one_at_a_time_rests_between_jobs
worker/test_isolation_many.py::test_leases_are_kept_while_all_hold_the_interpreters_lock
worker/test_pool_faults.py::test_killed_while_*
worker/test_pool_faults.py::test_a_stop_and_its_death_in_one_moment_are_not_told_twice
worker/test_pool_faults.py::test_stopped_*
worker/test_pool_faults.py::test_one_that_is_stopped_does_not_hold_the_end_up
worker/test_pool_faults.py::test_one_that_runs_its_jobs_apart_takes_its_child_along
worker/test_pool_faults.py::test_what_*
worker/test_pool_faults.py::test_orphans_that_end_are_reaped
worker/test_pool_faults.py::test_workers_killed_all_the_time_lose_no_job
worker/test_pool.py::test_what_a_job_starts_is_no_member_of_the_pool
worker/test_pool.py::test_a_worker_that_has_done_its_jobs_is_replaced
worker/test_pool.py::test_restart_replaces_every_worker
worker/test_pool.py::test_a_worker_broken_by_a_deploy_does_not_end_the_pool
worker/test_pool.py::test_a_job_out_of_tries_fails_with_what_became_of_its_worker
worker/test_pool.py::test_one_that_leaves_in_a_job_without_a_word
worker/test_pool.py::test_the_others_jobs_are_left_alone
worker/test_pool.py::test_a_worker_that_is_stopped_is_killed_and_its_job_tried_again
worker/test_pool.py::test_a_pause_holds_for_workers_that_come_later
worker/test_pool.py::test_many_workers_begin_a_few_at_a_time_and_it_hears_signals_meanwhile
worker/test_pool.py::test_it_*_a_worker_*
worker/test_pool.py::test_workers_are_replaced_when_files_change
worker/test_isolation_apart.py::test_a_killed_workers_job_ends_with_it_there_as_well
worker/test_isolation_apart.py::test_who_finds_no_room_waits_for_it_and_its_neighbours_go_on
drivers/test_shared_store.py::test_a_worker_killed_in_a_chain_is_replaced_by_one_on_another_host
outbox/test_killed.py::*
worker/test_exactly_once.py::test_each_row_has_its_job_whenever_the_program_is_killed
console/test_app.py::test_a_*_whose_reader_has_gone_*
web/test_attacks.py::test_a_fuzz_of_every_parameter_finds_nothing
web/test_dispatching.py::test_a_fuzzer_is_answered_as_the_document_says
worker/test_sqs.py::test_three_tries_killed_twice_then_done
worker/test_sqs.py::test_a_stop_during_a_long_poll_is_prompt_and_hides_no_message
worker/test_scaling.py::test_a_pool_*
worker/test_scaling.py::test_a_workers_replacement_has_as_many_slots_and_the_jobs_of_all
worker/test_slots.py::test_a_job_that_kills_its_worker_costs_those_that_had_not_begun_nothing
worker/test_bounds.py::test_a_pool_gives_back_the_permits_of_a_killed_worker

# What takes several seconds, so that `make test` stays short: .ci/run shows it.
typing/test_typing.py::test_what_is_wrong_*
celery/test_tutorials.py::test_first_steps_with_django
conformance/test_command.py::test_programs_may_have_an_option_of_the_same_name
conformance/test_command.py::test_a_wrong_name_is_one_line
console/test_failed.py::test_retried_twice_at_once_each_is_moved_once
console/test_flows.py::test_flows_are_listed_and_filtered
django/test_projects.py::test_forgotten_migrations_name_djangos_command
django/test_suite.py::test_pytest_django
drivers/broker/test_deaths.py::test_each_message_ends_once_*
drivers/database/test_pooler.py::test_clients_that_share_connections_share_no_statements
drivers/database/test_processes.py::test_processes_that_open_a_new_file_at_the_same_moment
drivers/rabbitmq/test_management.py::test_reserved_jobs_are_counted_after_some_seconds
drivers/rabbitmq/test_messages.py::test_a_message_that_was_refused_is_sent_again_on_another_channel
features/test_hostile.py::test_a_job_lives_whatever_its_payload_says
examples/test_csv_import.py::test_imports_as_a_plain_loop_does
importing/test_long_lists.py::test_only_a_part_is_in_memory
middleware/test_limits.py::test_of_many_no_more_pass_and_nearly_as_many
middleware/test_locks.py::test_is_renewed_far_beyond_its_lease_*
web/test_command.py::test_misuse_is_one_line
web/test_command.py::test_with_a_password_it_asks_for_it
worker/test_bounds.py::test_a_worker_that_stood_still_for_longer_says_so
worker/test_children.py::test_the_watchdog_watches_on_after_a_fork
worker/test_children.py::test_what_ends_a_job_is_not_lost_in_a_fork
worker/test_chunks.py::test_a_chunk_in_which_a_job_hangs_is_halved_over_workers
worker/test_chunks.py::test_a_chunk_that_is_ended_at_the_hard_timeout_*
worker/test_chunks.py::test_a_pool_returns_a_chunk_before_its_leases_end
worker/test_chunks.py::test_a_worker_that_is_told_twice_to_stop_gives_a_chunk_back_whole
worker/test_chunks.py::test_it_waits_for_more_and_a_plain_job_ends_the_wait
worker/test_chunks.py::test_one_job_of_a_running_chunk_is_cancelled
worker/test_deaf.py::test_signals_that_its_parent_blocks_are_heard
worker/test_flows.py::test_a_failed_node_blocks_what_follows_until_it_is_retried
worker/test_flows.py::test_random_graphs_while_workers_are_killed
worker/test_groups.py::test_killed_workers_give_their_places_back_*
worker/test_groups.py::test_the_command_that_forgets_a_failed_job_*
worker/test_groups.py::test_the_size_of_each_group_is_listed_*
worker/test_hostile.py::test_what_is_no_text_*
worker/test_isolation_apart.py::test_a_system_that_can_do_less
worker/test_isolation_many.py::test_a_late_job_is_killed_and_no_worker_ends_for_it
worker/test_isolation_many.py::test_what_a_job_leaves_falls_to_it_and_ends_with_it
worker/test_isolation_outages.py::*
worker/test_loop.py::test_a_long_job_is_seen_and_its_lease_renewed
worker/test_output.py::test_a_worker_whose_reader_pauses_for_good_stops_when_told
worker/test_pool.py::test_a_worker_that_ends_itself_in_a_stuck_job
worker/test_pool_faults.py::test_a_backend_that_is_gone_when_a_worker_dies_*
worker/test_rate_limits.py::test_after_so_many_exceptions_*
worker/test_slow_lines.py::test_large_jobs_do_not_go_round_between_workers
worker/test_status.py::test_cancel_one_that_runs_in_a_process_of_its_own
worker/test_status.py::test_cancel_one_that_waits_and_one_that_is_delayed
worker/test_steps.py::test_a_step_within_a_transaction_*
worker/test_usage.py::test_two_workers_on_a_file_being_created
worker/test_without_overlapping.py::test_a_killed_holder_frees_it_in_seconds
worker/test_without_overlapping.py::test_under_kills_it_is_never_two

# `make test` shows it on one backend, .ci/run on the others.
drivers/test_shared_store.py::*
drivers/test_forks.py::test_a_child_forked_while_a_thread_connects_can_dispatch = sqlite
drivers/test_gevent.py::* = redis
drivers/database/test_migrate.py::test_tables_of_laravel_are_upgraded = postgres*13 mariadb*10
drivers/database/test_migrate.py::test_processes_at_once
drivers/database/test_migrate.py::test_the_printed_sql_does_what_migrate_does = postgres*
drivers/database/test_ended.py::* = unseen-kill
outbox/test_relay.py::* = sqlite*
worker/test_exactly_once.py::* = sqlite*
worker/test_leases.py::test_a_killed_workers_job_runs_again_soon = database redis
worker/test_leases.py::test_a_long_job_runs_once_though_its_lease_is_short = database
worker/test_slots.py::test_a_killed_worker_loses_nothing_of_many = database
worker/test_slots.py::test_so_many_run_at_once_and_no_more = database*
worker/test_bounds.py::test_a_worker_runs_so_many_of_a_queue_* = database-Waits redis*
worker/test_bounds.py::test_all_workers_run_so_many_of_a_class_and_delay_no_other = database
worker/test_bounds.py::test_all_workers_run_so_many_of_a_queue_and_delay_no_other = redis
worker/test_isolation_chains.py::* = database
worker/test_stops.py::test_restart_ends_a_busy_worker_after_its_job = database
worker/test_pauses.py::test_a_paused_queue_waits_and_the_others_go_on = database
worker/test_chains.py::test_two_workers_run_a_chain_with_a_batch_in_it = database redis
worker/test_attempts.py::test_three_tries_killed_twice_then_done = database
worker/test_timeouts.py::test_a_job_stuck_in_c_is_ended_and_fails_with_a_reason
worker/test_awaiting.py::* = database*
worker/test_groups.py::test_in_strict_order_each_* = database*
worker/test_hostile.py::* = database*
histories/test_histories.py::* = memory sqlite redis* ordered* *broker failover beanstalkd
conformance/test_concurrency.py::test_one_takes_* = *-threads-* sqlite-* redis-*
worker/test_flows.py::test_a_flow_with_a_node_of_each_kind = beanstalkd-*
worker/test_flows.py::test_a_flow_within_a_transaction = sqlite
worker/test_steps.py::test_a_job_sleeps_and_waits_for_an_event = redis-* beanstalkd-*
worker/test_steps.py::test_a_job_that_gives_itself_back_* = redis-*
worker/test_steps.py::test_several_steps_within_transactions_of_one_attempt = sqlite
celery/test_tutorials.py::test_first_steps_with_celery = redis

# `make test` shows it of one kind of worker, job or end, .ci/run of the others.
worker/test_output.py::test_what_a_reader_that_pauses_did_not_take_* = alone
worker/test_output.py::test_a_reader_that_has_gone_changes_no_exit_code = alone isolated--json
worker/test_output.py::test_a_job_cannot_take_the_workers_output = *-alone *-pool *-isolated
worker/test_output.py::test_a_full_disk_silences_nothing_for_good = alone
worker/test_children.py::test_children_end_* = isolated-HasChildren alone-HasChildrenOnLoop
worker/test_isolation.py::test_a_process_that_ends_without_a_word_* = *-kill-*
worker/test_isolation.py::test_a_job_settles_itself_by_the_worker_and_once = *-release-*
worker/test_isolation.py::test_what_a_job_made_of_itself_holds_* = *-delete
worker/test_isolation.py::test_a_job_that_does_not_end_is_killed_and_fails_at_once = *-StuckInC
worker/test_isolation_many.py::test_what_ends_one_process_ends_no_other = *-kill
worker/test_isolation_many.py::test_a_late_job_is_killed_and_no_worker_ends_for_it = *-StuckInC
worker/test_isolation_many.py::test_it_is_scaled_while_it_runs = *-1
worker/test_isolation_many.py::test_it_stops_when_it_is_to = *-options0-*
worker/test_isolation_many.py::test_nobody_waits_for_what_a_job_does_when_it_has_failed = *-True
worker/test_slots.py::test_a_late_job_sees_why_it_ends_* = *has_a_group*
worker/test_slots.py::test_a_job_that_does_not_end_is_settled_* = *is_in_c_code*
worker/test_slots.py::test_one_of_several_is_cancelled = *-Waits
worker/test_deaf.py::test_the_worker_hears_its_signals_* = slots-f* alone-ignore
worker/test_deaf.py::test_neighbours_that_had_not_begun_* = cancel-asyncio stop-uvloop
worker/test_deaf.py::test_a_signal_wakes_the_worker_again = asyncio-closed alone-open
worker/test_bounds.py::test_a_class_that_is_imported_late_is_bounded = *('--concurrency',?4)
worker/test_bounds.py::test_whatever_becomes_of_a_job_its_permit_is_given_back = *releases
worker/test_bounds.py::test_it_holds_in_workers_of_every_kind
metrics/test_pushes.py::test_what_jobs_dispatch_is_written_by_their_worker = words1
metrics/test_pushes.py::test_it_is_written_when_a_process_ends = fork*
test_dispatch.py::test_a_process_of_multiprocessing_sends_what_it_dropped_last
test_dispatch.py::test_jobs_of_a_script_with_a_guard_work = command0
test_awaited_ends.py::test_so_does_that_of_a_process_of_multiprocessing = fork
test_awaited_calls.py::test_an_error_nobody_hears_* = *chain*
test_imports.py::test_help_loads_no_client = arguments1
worker/test_chunks.py::test_a_chunk_is_recorded_as_a_job_is = *-kill-*
worker/test_chunks.py::test_where_nothing_gathers_them_* = database-options1
worker/test_exactly_once.py::test_however_a_job_ends_it_is_done_once = sqlite-in*
worker/test_groups.py::test_one_job_beside_hundreds_* = line-*
worker/test_health.py::test_one_that_is_paused_is_ready = []
worker/test_health.py::test_a_worker_that_waits_is_ready_* = []
worker/test_health.py::test_one_that_is_stopped_is_dead_* = []
worker/test_health.py::test_one_whose_backend_is_away_* = *-[]
worker/test_lifespan.py::test_one_that_hangs_as_it_is_left_is_ended_* = blocks_the_loop-*
worker/test_lifespan.py::test_one_that_hangs_as_it_is_left_has_its_grace = awaits-alone *-isolated
worker/test_recorder.py::test_a_killed_job_has_left_* = options0
worker/test_resources.py::test_each_process_makes_it_once_* = alone-* slots-* isolated-Plain pool-*
worker/test_resources.py::test_functions_chunks_and_chains_* = alone slots
worker/test_steps.py::test_a_job_of_a_function_has_steps = *-line
worker/test_steps.py::test_a_link_gets_what_the_one_before_it_returned = *-line
worker/test_steps.py::test_tasks_of_a_group_sleep_and_wait = *-line
drivers/redis/test_connections.py::test_what_is_wrong_for_good_* = no?password
operations/test_undo_flows.py::test_whatever_goes_on_during_an_undo = *-0 *-1 *-2 *-3
operations/test_undo_flows.py::test_killed_at_any_call_nothing_is_lost = *-0 *-1 *-2 *-3
models/test_places.py::test_workers_of_each_kind_load_them = options0
console/test_error_places.py::test_what_is_kept_begins_* = options0
testing/test_repeatable_libraries.py::test_psycopg = psycopg_transaction psycopg_async
testing/test_repeatable_libraries.py::test_asyncpg = asyncpg_transaction
"""

LONG = """
# Once more on another backend, though what is shown is above the contract. In the browser, jobs are
# filtered, paged, selected and cancelled on each.
web/browser/test_actions.py::test_a_* = database
web/browser/test_actions.py::test_failed_* = database
web/browser/test_actions.py::test_every_* = database
web/browser/test_actions.py::test_what_* = database
web/browser/test_actions.py::test_running_* = database
web/browser/test_live.py::test_what_changes_is_seen_without_a_click = database
laravel/test_traces.py::test_a_trace_goes_through_laravel_and_back = redis
worker/test_steps.py::test_a_step_within_a_transaction_* = sqlite-slots postgres-line
worker/test_steps.py::test_killed_between_any_two_* = database-slots
test_forged.py::* = memory* apart* redis*
test_affected.py::test_each_test_of_ours_uses_what_it_imports
faults/test_night.py::test_each_cause_is_named
django/test_tasks_real.py::test_the_higher_priority_*
django/test_real.py::test_the_pool_works
django/test_real.py::test_connections_end_with_their_jobs_and_are_shared_by_none
django/test_suite.py::test_the_central_ones_on_mariadb
worker/test_supervise.py::test_long_jobs_are_not_ended_and_do_not_keep_others_from_running
worker/test_health.py::test_a_pool_is_alive_while_one_of_its_workers_is
conformance/test_command.py::test_a_driver_* = forgetful unfenced
web/test_api.py::test_odd_parameters_are_answered = /api* / /jobs
web/test_attacks.py::test_who_may_one_* = clear cancel retry* stop* scale change* add* send*
worker/test_isolation_many.py::test_what_ends_one_* = *-kill *-fds
worker/test_neighbours.py::test_only_the_job_* = Keeps-5 KeepsOnLoop-1
worker/test_beanstalkd_faults.py::test_no_job_is_lost_* = F1 F40 F43
worker/test_bounds.py::test_a_class_that_is_imported_late_* = *() *('--conc* *('--isolate',)
worker/test_deaf.py::test_the_worker_hears_* = isolated-* slots-* alone-ignore alone-function
drivers/test_forks.py::test_a_child_forked_while_a_thread_connects_* = sqlite redis postgres
drivers/test_gevent.py::* = sqlite redis postgres
laravel/test_laravel_database.py::* = postgres* sqlite*
laravel/test_laravel_database.py::test_the_tables_* = postgresql-laravel sqlite-python
worker/test_redis_faults.py::test_no_job_is_lost_* = F1 F20 D1 P1
worker/test_groups.py::test_one_job_beside_hundreds_* = *-database line-postgresql isolated-redis
drivers/test_shared_store.py::* = redis-own_postgres
schedules/test_killed.py::test_one_job_each_planned_time = database
worker/test_exactly_once.py::test_each_link_and_member_* = postgres
worker/test_bounds_faults.py::* = queue-redis
outbox/test_killed.py::* = sqlite-c* postgres-applied
web/browser/test_attacks.py::test_a_form_of_somebody_else_changes_nothing = localhost
test_recipes.py::test_alembic = postgres*
worker/test_slots_faults.py::* = database- redis-
worker/test_bounds.py::test_a_worker_runs_so_many_of_a_queue_* = database-Waits redis-*
worker/test_bounds.py::test_whatever_becomes_of_a_job_* = *4-late *releases *1-fails
worker/test_steps.py::test_a_job_sleeps_and_waits_* = *Order-iso* *Async-slots redis-*line
worker/test_steps.py::test_a_job_that_gives_itself_back_* = database-slots redis-line
worker/test_exactly_once.py::test_however_a_job_ends_it_is_done_once = sqlite* *worker
worker/test_beanstalkd_faults.py::* = F1 F5 F40 F42 F43 F45
worker/test_leases.py::test_a_late_failure_or_release_* = data*raises* *releases?d* redis-fails?r*
worker/test_flows.py::test_a_flow_with_a_node_of_each_kind = database-slots beanstalkd-line
worker/test_chunks.py::test_a_chunk_that_is_ended_at_the_hard_timeout_* = database-options0
worker/test_timeouts.py::test_an_alarm_during_a_driver_call_* = database-False
worker/test_timeouts.py::test_usr1_during_a_driver_call_* = database-1
worker/test_bounds.py::test_a_permit_lasts_as_long_as_its_job = *() *2)
worker/test_bounds.py::test_it_holds_in_workers_of_every_kind = *isolate* *workers*
worker/test_bounds.py::test_a_*_that_is_full_is_not_empty = *-1
worker/test_leases.py::test_a_long_job_runs_once_though_its_lease_is_short = redis postgresql
worker/test_groups.py::test_killed_workers_give_their_places_back_* = database
worker/test_groups.py::test_workers_of_one_group_get_out_of_* = line-database slots-beanstalkd
worker/test_groups.py::test_the_command_that_forgets_a_failed_job_* = database
worker/test_isolation_many.py::test_it_is_scaled_while_it_runs = *-2
worker/test_children.py::test_so_do_those_begun_in_other_ways = alone-forks* slots-sp* isolated-sp*
worker/test_deaf.py::test_a_signal_wakes_the_worker_again = alone-closed uvloop-* asyncio-open
worker/test_chains.py::test_two_workers_run_a_chain_with_a_batch_in_it = database redis
worker/test_unique.py::test_a_worker_killed_with_a_unique_job_* = *Processing *Popped
worker/test_status.py::test_what_it_gives = *none *object
web/test_command.py::test_it_shows_and_does_what_real_workers_see = postgresql
web/test_workers_page.py::test_each_slot_that_runs_a_job_has_a_line = redis
web/browser/test_actions.py::test_jobs_are_filtered_* = postgresql
console/test_error_places.py::test_what_is_kept_begins_with_the_jobs_own_frames = options0 options2
drivers/broker/test_deaths.py::test_each_message_ends_once_* = VisibleBroker
test_recipes.py::test_django = postgres

# What our own tests and measurements stand on.
drivers/test_support_*.py::*
benchmarks/test_benchmarks.py::test_the_bare_loop_speaks_to_*

# Once more of another kind of worker, job, end or clock; `make demo` runs the index.
examples/test_stdlib_index.py::test_indexes_as_a_plain_loop_does
examples/test_stdlib_index.py::test_the_part_tested_has_a_file_that_is_no_python
worker/test_pool.py::test_a_large_job_is_taken_up_too
worker/test_pool.py::test_the_first_timeout_is_the_end_where_the_class_says_so
worker/test_pool.py::test_an_interrupted_job_is_a_failed_attempt
worker/test_pool.py::test_it_ends_when_all_is_empty
worker/test_pool.py::test_one_job_each_with_once
worker/test_pool.py::test_a_worker_that_is_too_big_is_replaced
worker/test_pool.py::test_so_does_the_stop_timeout
worker/test_pool.py::test_a_paused_pool_stops
worker/test_neighbours.py::test_a_pool_does_not_end_the_worker_for_a_neighbour
worker/test_slots.py::test_a_blocked_loop_costs_nobody_its_lease_and_is_named = database-asyncio
worker/test_isolation_many.py::test_a_worker_lists_what_it_runs
worker/test_isolation_many.py::test_a_pause_leaves_alone_what_runs
worker/test_isolation_many.py::test_a_restart_lets_jobs_end
worker/test_isolation_many.py::test_what_fails_is_tried_again_and_fails
worker/test_isolation_many.py::test_it_rests_no_longer_than_until_it_is_told_to_stop
worker/test_isolation_many.py::test_one_that_rests_is_not_scaled
drivers/database/test_processes.py::test_workers_killed_at_random_lose_and_double_nothing = 1
worker/test_output.py::test_a_job_cannot_take_the_* = *-alone object-* none-pool redirect-slots
worker/test_output.py::test_what_a_reader_that_pauses_did_not_take_* = alone isolated-slots pool
worker/test_output.py::test_a_full_disk_silences_nothing_for_good = alone pool
worker/test_slots.py::test_a_late_job_sees_why_it_ends_* = *-asyncio *computes-uvloop
worker/test_slots.py::test_a_job_that_does_not_end_is_settled_* = *c_code-asyncio *sleeps-uvloop
worker/test_output.py::test_a_reader_that_has_gone_changes_* = alone isolated--json pool
django/test_real.py::test_requests_and_a_worker = wsgi*
django/test_tasks_real.py::test_on_mariadb
flask/test_real.py::test_jobs_have_a_context_in_each_kind_of_worker = --conc* --isolate
fastapi/test_real.py::test_jobs_take_dependencies_in_each_kind_of_worker = --conc* --isolate
web/test_attacks.py::test_a_long_fuzz_of_every_parameter_finds_nothing
drivers/test_forks.py::test_a_child_can_dispatch_* = sqlite-drop
drivers/database/test_ended.py::test_no_call_after_it_raises_* = unseen-* seen-wait* seen-restart
drivers/database/test_ended.py::test_a_job_goes_on_* = unseen-kill seen-restart unseen-wait*
drivers/database/test_migrate.py::test_processes_at_once = *8*
alerts/test_real.py::test_who_looks_goes_and_the_other_tells_once = *19-when*
worker/test_middleware.py::test_a_wrong_one_* = *Missing*
console/test_numbers.py::test_a_number_without_sense_is_one_line = inf* 9999*
schedules/test_clock_changes.py::test_a_year_with_windows = Europe/Vienna Africa/C* Australia/L*
schedules/test_calendar.py::test_a_year_is_as_cronsim_has_it = Africa/C* Australia/L*
schedules/test_calendar.py::test_a_daily_job_runs_once_each_day_of_the_year = Africa/C* Australia/L*
"""


QUICK = """
# What features, contracts and payloads are, in this process.
features/*::*
conformance/*::* = memory* sqlite*
histories/*::* = memory sqlite
following/*::* = memory database
failed/*::*
middleware/*::*
testing/test_fak*::*
testing/test_following.py::*
test_config.py::*
test_dispatch.py::test_a_wrong_*
test_events.py::test_a_*
test_functions.py::*
test_payload.py::*
test_queueable.py::*
test_registry.py::*
test_selection.py::*
test_unique.py::*

# What becomes of an attempt, and what decides it, as values.
worker/test_balance.py::*
worker/test_decide.py::*
worker/test_settler.py::*
worker/test_guard.py::*
worker/test_heartbeat.py::*
worker/test_loop.py::*
worker/test_parts.py::*
worker/test_price.py::*
worker/test_queues.py::*
worker/test_runner.py::*
worker/test_slot_steps.py::*

# A dozen real workers.
worker/test_attempts.py::test_three_tries_killed_twice_then_done = database
worker/test_chains.py::test_two_workers_run_a_chain_with_a_batch_in_it = database
worker/test_isolation.py::test_an_exception_comes_with_its_own_traceback = database
worker/test_isolation_many.py::test_so_many_run_at_once_each_in_its_process = database
worker/test_leases.py::test_a_killed_workers_job_runs_again_soon = database
worker/test_pool.py::test_stopping_waits_for_the_jobs
worker/test_signals.py::test_a_second_stop_gives_the_running_job_back_uncounted = database*
worker/test_signals.py::test_a_stop_lets_the_running_job_finish = database*
worker/test_slots.py::test_so_many_run_at_once_and_no_more = database*
worker/test_stops.py::test_json_lines = database
worker/test_stops.py::test_max_jobs = database
worker/test_timeouts.py::test_the_soft_stage_runs_finally_and_the_worker_exits_with_1 = database*
worker/test_unique.py::test_a_job_is_alone_until_its_final_end = database*
"""


_OTHER_BACKEND = re.compile(r"tests/worker/.*\[.*(redis|postgresql|mariadb|beanstalkd)")
_SHOWN_ON_OTHERS = re.compile(r"/test_(.*faults|redis.*|rabbitmq.*|leases|chains|batches)\.py")
"""The modules of the worker that .ci/run shows on servers, too."""


def is_of_another_backend(nodeid: str) -> bool:
    """Whether a test of the worker runs on a server; it runs on the embedded database, too."""
    return bool(_OTHER_BACKEND.search(nodeid)) and not _SHOWN_ON_OTHERS.search(nodeid)


@dataclass
class Line:
    """The tests that one line is about."""

    text: str
    file: re.Pattern[str]
    name: re.Pattern[str]
    words: Sequence[re.Pattern[str]]
    found: bool = False
    used: set[re.Pattern[str]] = field(default_factory=set)
    """The words that have stood for some parametrization."""

    def names(self, test: str, parameters: str, *, but_words: bool) -> bool:
        """Whether it names a test of its file: its words, or all but its words."""
        if not self.name.fullmatch(test):
            return False
        self.found = True
        if not self.words or not parameters:
            return not (self.words and but_words)
        said = [each for each in self.words if each.fullmatch(parameters)]
        self.used |= {*said}
        return bool(said) is not but_words


class Selection:
    """What the lines of one list name."""

    def __init__(self, text: str, *, but_words: bool = False) -> None:
        lines = (each for each in text.splitlines() if each and not each.startswith("#"))
        self._lines = [_line(each) for each in lines]
        self._but_words = but_words
        self._of_file: dict[str, list[Line]] = {}

    def __contains__(self, identity: str) -> bool:
        path, _, test = identity.partition("::")
        file = path.removeprefix("tests/")
        if file not in self._of_file:
            self._of_file[file] = [each for each in self._lines if each.file.fullmatch(file)]
        name, _, parameters = test.partition("[")
        name, parameters = name.rpartition("::")[2], parameters.removesuffix("]")
        lines = self._of_file[file]
        return True in [each.names(name, parameters, but_words=self._but_words) for each in lines]

    def stale(self) -> list[str]:
        """Give the lines that have named no test so far, or have words that stood for none."""
        return [
            each.text
            for each in self._lines
            if not each.found or not each.used.issuperset(each.words)
        ]


def _line(text: str) -> Line:
    test, _, words = text.partition(" = ")
    file, _, name = test.partition("::")
    return Line(text, _pattern(file), _pattern(name), [_pattern(each) for each in words.split()])


def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(re.escape(glob).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
