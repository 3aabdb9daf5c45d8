CREATE TABLE `agents` (
	`tenant_id` text NOT NULL,
	`name` text NOT NULL,
	`settings` text NOT NULL,
	`updated_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `name`)
);
--> statement-breakpoint
CREATE TABLE `audit` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`actor` text NOT NULL,
	`action` text NOT NULL,
	`target` text NOT NULL,
	`detail` text,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE INDEX `audit_tenant` ON `audit` (`tenant_id`,`created_at`);--> statement-breakpoint
CREATE TABLE `keys` (
	`id` text PRIMARY KEY NOT NULL,
	`tenant_id` text NOT NULL,
	`hash` text NOT NULL,
	`scope` text NOT NULL,
	`agent` text,
	`label` text NOT NULL,
	`rate_per_minute` integer,
	`created_at` integer NOT NULL,
	`revoked_at` integer
);
--> statement-breakpoint
CREATE INDEX `keys_tenant` ON `keys` (`tenant_id`,`created_at`);--> statement-breakpoint
CREATE TABLE `prices` (
	`tenant_id` text NOT NULL,
	`model` text NOT NULL,
	`valid_from` integer NOT NULL,
	`prompt_per_million` real NOT NULL,
	`completion_per_million` real NOT NULL,
	PRIMARY KEY(`tenant_id`, `model`, `valid_from`)
);
--> statement-breakpoint
CREATE TABLE `providers` (
	`tenant_id` text NOT NULL,
	`name` text NOT NULL,
	`base_url` text NOT NULL,
	`key_env` text,
	`key_sealed` text,
	`updated_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `name`)
);
--> statement-breakpoint
CREATE TABLE `reward_revisions` (
	`rollout_id` text NOT NULL,
	`revision` integer NOT NULL,
	`tenant_id` text NOT NULL,
	`reward` real,
	`outcome` text,
	`rewards` text NOT NULL,
	`replaced_at` integer NOT NULL,
	PRIMARY KEY(`rollout_id`, `revision`)
);
--> statement-breakpoint
ALTER TABLE `calls` ADD `provider` text;--> statement-breakpoint
ALTER TABLE `calls` ADD `prefix_call_id` text;--> statement-breakpoint
ALTER TABLE `calls` ADD `prefix_tokens` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `rollouts` ADD `session_id` text;--> statement-breakpoint
ALTER TABLE `rollouts` ADD `subject_id` text;--> statement-breakpoint
ALTER TABLE `rollouts` ADD `key_id` text;--> statement-breakpoint
CREATE INDEX `rollouts_subject` ON `rollouts` (`tenant_id`,`subject_id`) WHERE "rollouts"."subject_id" is not null;