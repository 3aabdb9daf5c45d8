CREATE TABLE `otlp_exports` (
	`tenant_id` text PRIMARY KEY NOT NULL,
	`cursor` integer NOT NULL,
	`error` text,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `agl_attempts` (
	`rollout_seq` integer NOT NULL,
	`attempt_id` text NOT NULL,
	`tenant_id` text NOT NULL,
	`number` integer NOT NULL,
	PRIMARY KEY(`rollout_seq`, `attempt_id`)
);
--> statement-breakpoint
CREATE TABLE `agl_events` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`rollout_seq` integer NOT NULL,
	`attempt_id` text NOT NULL,
	`event_type` text NOT NULL,
	`data` text NOT NULL,
	`call_id` text,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `agl_events_rollout` ON `agl_events` (`rollout_seq`,`attempt_id`,`id`);--> statement-breakpoint
CREATE TABLE `agl_inflight` (
	`call_id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`expires_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `agl_inflight_tenant` ON `agl_inflight` (`tenant_id`,`expires_at`);--> statement-breakpoint
CREATE TABLE `agl_models` (
	`tenant_id` text NOT NULL,
	`model` text NOT NULL,
	`endpoint` text NOT NULL,
	`version` integer NOT NULL,
	`registered_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `model`, `endpoint`)
);
--> statement-breakpoint
CREATE TABLE `agl_pauses` (
	`tenant_id` text PRIMARY KEY NOT NULL,
	`paused` integer NOT NULL,
	`retry_after_seconds` integer NOT NULL,
	`reason` text,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `agl_rollouts` (
	`seq` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`tenant_id` text NOT NULL,
	`id` text NOT NULL,
	`shadow_id` text NOT NULL,
	`input` text,
	`is_train` integer NOT NULL,
	`config` text NOT NULL,
	`metadata` text NOT NULL,
	`data_id` text NOT NULL,
	`state` text NOT NULL,
	`k8s_job_name` text,
	`last_attempt_id` text,
	`error_message` text,
	`version` integer NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `agl_rollouts_id` ON `agl_rollouts` (`tenant_id`,`id`);--> statement-breakpoint
CREATE INDEX `agl_rollouts_state` ON `agl_rollouts` (`tenant_id`,`state`,`seq`);--> statement-breakpoint
CREATE TABLE `agl_terminals` (
	`tenant_id` text NOT NULL,
	`position` integer NOT NULL,
	`rollout_seq` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `position`)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `agl_terminals_rollout` ON `agl_terminals` (`rollout_seq`);