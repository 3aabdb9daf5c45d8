INSERT INTO `tenants` (`id`, `name`, `settings`, `created_at`)
VALUES ('default', 'default', '{"fail_open":false}', cast(strftime('%s', 'now') AS integer) * 1000)
ON CONFLICT DO NOTHING;
