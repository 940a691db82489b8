-- name: ListViews :many
-- ListViews returns a user's own views and those that are shared in the tenant, each part by name.
SELECT name, query, (person = '')::boolean AS shared, saved_by, saved_at
FROM outbox.saved_views
WHERE tenant_id = @tenant_id
  AND person IN ('', @person::text)
ORDER BY person = '', name;

-- name: SaveView :one
-- SaveView stores a view, or gives the view of that name another query: a shared one of another person only if it
-- stands for @replaces, or for the same. is_full reports that there are @most others already; then nothing is saved
-- either. Sharing a view is recorded as an act; saving a private one is not.
WITH was AS (
    SELECT name, query FROM outbox.saved_views WHERE saved_views.tenant_id = @tenant_id AND saved_views.person = @person
), room AS (
    SELECT count(*) >= @most::integer AS is_full FROM was WHERE was.name <> @name::text
), saved AS (
    INSERT INTO outbox.saved_views (tenant_id, person, name, query, saved_by)
    SELECT @tenant_id, @person, @name, @query, @actor
    FROM room
    WHERE NOT room.is_full
    ON CONFLICT (tenant_id, person, name) DO UPDATE
        SET query = excluded.query, saved_by = excluded.saved_by, saved_at = statement_timestamp()
        WHERE saved_views.saved_by = @actor OR saved_views.query = @replaces OR saved_views.query = excluded.query
    RETURNING name, query
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, target, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'view.share', nullif(@tenant_id, '00000000-0000-0000-0000-000000000000'),
        saved.name, (SELECT jsonb_build_object('query', was.query) FROM was WHERE was.name = saved.name), jsonb_build_object('query', saved.query)
    FROM saved
    WHERE @person = ''
)
SELECT EXISTS (SELECT FROM saved) AS is_saved, room.is_full::boolean AS is_full FROM room;

-- name: DeleteView :one
-- DeleteView deletes a view if it stands for @query. That is recorded as an act if the view was shared. was_there
-- reports that there was one of that name, whatever it stood for.
WITH deleted AS (
    DELETE FROM outbox.saved_views
    WHERE saved_views.tenant_id = @tenant_id AND saved_views.person = @person AND saved_views.name = @name AND saved_views.query = @query
    RETURNING name, query
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, target, before)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'view.delete',
           nullif(@tenant_id, '00000000-0000-0000-0000-000000000000'),
        deleted.name, jsonb_build_object('query', deleted.query)
    FROM deleted
    WHERE @person = ''
)
SELECT EXISTS (SELECT FROM deleted) AS is_deleted,
       EXISTS (SELECT FROM outbox.saved_views WHERE saved_views.tenant_id = @tenant_id AND saved_views.person = @person AND saved_views.name = @name) AS was_there;
