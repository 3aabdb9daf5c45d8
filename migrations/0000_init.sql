CREATE TABLE `attempts` (
	`rollout_id` text NOT NULL,
	`attempt` integer NOT NULL,
	`tenant_id` text NOT NULL,
	`status` text NOT NULL,
	`started_at` integer NOT NULL,
	`finished_at` integer,
	`error` text,
	PRIMARY KEY(`rollout_id`, `attempt`)
);
--> statement-breakpoint
CREATE TABLE `batch_entries` (
	`rollout_id` text PRIMARY KEY NOT NULL,
	`batch_id` text NOT NULL,
	`tenant_id` text NOT NULL
);
--> statement-breakpoint
CREATE INDEX `batch_entries_batch` ON `batch_entries` (`batch_id`);--> statement-breakpoint
CREATE TABLE `batches` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`run_id` text NOT NULL,
	`policy` text NOT NULL,
	`step` integer NOT NULL,
	`status` text NOT NULL,
	`version` integer,
	`created_at` integer NOT NULL,
	`trained_at` integer
);
--> statement-breakpoint
CREATE UNIQUE INDEX `batches_open_step` ON `batches` (`run_id`,`step`) WHERE "batches"."status" <> 'abandoned';--> statement-breakpoint
CREATE INDEX `batches_run` ON `batches` (`run_id`,`step`);--> statement-breakpoint
CREATE TABLE `calls` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`rollout_id` text NOT NULL,
	`attempt` integer NOT NULL,
	`role` text DEFAULT 'main' NOT NULL,
	`dialect` text NOT NULL,
	`model_asked` text NOT NULL,
	`policy` text,
	`policy_version` integer,
	`model_answered` text,
	`request` text NOT NULL,
	`response` text,
	`prompt_tokens` integer DEFAULT 0 NOT NULL,
	`completion_tokens` integer DEFAULT 0 NOT NULL,
	`prompt_token_ids` blob,
	`response_token_ids` blob,
	`behaviour_logprobs` blob,
	`response_tokens` text,
	`temperature` real,
	`finish_reason` text,
	`http_status` integer NOT NULL,
	`error` text,
	`trainable` integer NOT NULL,
	`first_byte_ms` real,
	`latency_ms` real NOT NULL,
	`upstream_attempts` integer DEFAULT 1 NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `calls_rollout` ON `calls` (`rollout_id`,`attempt`,`created_at`);--> statement-breakpoint
CREATE TABLE `metrics` (
	`run_id` text NOT NULL,
	`step` integer NOT NULL,
	`name` text NOT NULL,
	`tenant_id` text NOT NULL,
	`value` real NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`run_id`, `step`, `name`)
);
--> statement-breakpoint
CREATE TABLE `policies` (
	`tenant_id` text NOT NULL,
	`name` text NOT NULL,
	`route_version` integer NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `name`)
);
--> statement-breakpoint
CREATE TABLE `policy_versions` (
	`tenant_id` text NOT NULL,
	`policy` text NOT NULL,
	`version` integer NOT NULL,
	`parent_version` integer,
	`kind` text NOT NULL,
	`artifact` text NOT NULL,
	`sha256` text NOT NULL,
	`run_id` text,
	`batch_id` text,
	`step` integer,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `policy`, `version`)
);
--> statement-breakpoint
CREATE TABLE `probes` (
	`id` integer PRIMARY KEY NOT NULL,
	`touched_at` integer DEFAULT 0 NOT NULL
);
--> statement-breakpoint
CREATE TABLE `revoked_tokens` (
	`jti` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`expires_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `rewards` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`key` text NOT NULL,
	`rollout_id` text NOT NULL,
	`attempt` integer NOT NULL,
	`call_id` text,
	`source` text NOT NULL,
	`name` text NOT NULL,
	`value` real NOT NULL,
	`detail` text,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `rewards_key` ON `rewards` (`tenant_id`,`key`);--> statement-breakpoint
CREATE INDEX `rewards_rollout` ON `rewards` (`rollout_id`);--> statement-breakpoint
CREATE TABLE `rollouts` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`run_id` text,
	`task_id` text,
	`group_id` text,
	`agent` text NOT NULL,
	`mode` text NOT NULL,
	`pin` text,
	`status` text NOT NULL,
	`attempt` integer DEFAULT 0 NOT NULL,
	`max_attempts` integer NOT NULL,
	`not_before` integer DEFAULT 0 NOT NULL,
	`lease_until` integer,
	`result` text,
	`error` text,
	`reward` real,
	`outcome` text,
	`disposition` text,
	`drop_reason` text,
	`created_at` integer NOT NULL,
	`started_at` integer,
	`finished_at` integer
);
--> statement-breakpoint
CREATE INDEX `rollouts_tenant_created` ON `rollouts` (`tenant_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `rollouts_status` ON `rollouts` (`status`,`agent`,`created_at`);--> statement-breakpoint
CREATE INDEX `rollouts_undisposed` ON `rollouts` (`run_id`,`group_id`) WHERE "rollouts"."disposition" is null;--> statement-breakpoint
CREATE INDEX `rollouts_run` ON `rollouts` (`run_id`,`mode`,`status`);--> statement-breakpoint
CREATE TABLE `runs` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`policy` text NOT NULL,
	`agent` text NOT NULL,
	`config` text NOT NULL,
	`eval_before` text,
	`eval_after` text,
	`created_at` integer NOT NULL,
	`finished_at` integer
);
--> statement-breakpoint
CREATE TABLE `spans` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`rollout_id` text NOT NULL,
	`attempt` integer NOT NULL,
	`trace_id` text,
	`parent_id` text,
	`name` text NOT NULL,
	`attributes` text NOT NULL,
	`started_at` integer NOT NULL,
	`finished_at` integer
);
--> statement-breakpoint
CREATE INDEX `spans_rollout` ON `spans` (`rollout_id`);--> statement-breakpoint
CREATE TABLE `tasks` (
	`tenant_id` text NOT NULL,
	`id` text NOT NULL,
	`agent` text NOT NULL,
	`split` text NOT NULL,
	`input` text NOT NULL,
	`judge` text,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `id`)
);
--> statement-breakpoint
CREATE TABLE `tenants` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`settings` text NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `train_steps` (
	`run_id` text NOT NULL,
	`step` integer NOT NULL,
	`tenant_id` text NOT NULL,
	`batch_id` text NOT NULL,
	`policy` text NOT NULL,
	`version` integer NOT NULL,
	`metrics` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`run_id`, `step`)
);
--> statement-breakpoint
CREATE TABLE `usage` (
	`tenant_id` text NOT NULL,
	`day` text NOT NULL,
	`model` text NOT NULL,
	`mode` text NOT NULL,
	`calls` integer NOT NULL,
	`prompt_tokens` integer NOT NULL,
	`completion_tokens` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `day`, `model`, `mode`)
);
