CREATE TABLE `__new_revoked_tokens` (
	`jti` text NOT NULL,
	`tenant_id` text NOT NULL,
	`expires_at` integer NOT NULL,
	PRIMARY KEY(`tenant_id`, `jti`)
);
--> statement-breakpoint
INSERT INTO `__new_revoked_tokens`("jti", "tenant_id", "expires_at") SELECT "jti", "tenant_id", "expires_at" FROM `revoked_tokens`;--> statement-breakpoint
DROP TABLE `revoked_tokens`;--> statement-breakpoint
ALTER TABLE `__new_revoked_tokens` RENAME TO `revoked_tokens`;
