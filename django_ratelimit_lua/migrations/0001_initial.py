from typing import Any

import django.core.validators
import django.db.models.deletion
import django_ratelimit_lua.identity
import django_ratelimit_lua.models.change
import django_ratelimit_lua.models.rule
from django.conf import settings
from django.db import migrations, models


def name_the_database(apps: Any, schema_editor: Any) -> None:
    """Give the database its id before the first rule is saved."""
    revisions = apps.get_model("django_ratelimit_lua", "RateLimitRevision")
    revisions.objects.using(schema_editor.connection.alias).get_or_create(pk=1)


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='RateLimitChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision', models.BigIntegerField(db_index=True, verbose_name='revision')),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True, verbose_name='when')),
                ('by', models.CharField(blank=True, max_length=254, verbose_name='by')),
                ('kind', models.CharField(choices=django_ratelimit_lua.models.change.kind_choices, max_length=10, verbose_name='kind')),
                ('object_id', models.BigIntegerField(db_index=True, null=True, verbose_name='row')),
                ('name', models.CharField(max_length=300, verbose_name='name')),
                ('action', models.CharField(choices=[('created', 'created'), ('changed', 'changed'), ('deleted', 'deleted'), ('bulk', 'bulk change'), ('reset', 'reset'), ('unbanned', 'ban lifted')], max_length=10, verbose_name='action')),
                ('before', models.JSONField(null=True, verbose_name='before')),
                ('after', models.JSONField(null=True, verbose_name='after')),
            ],
            options={
                'verbose_name': 'change',
                'verbose_name_plural': 'changes',
                'ordering': ('-revision', '-pk'),
            },
        ),
        migrations.CreateModel(
            name='RateLimitHost',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision', models.PositiveIntegerField(default=1, editable=False, verbose_name='revision')),
                ('name', models.CharField(max_length=253, unique=True, verbose_name='name')),
                ('weight', models.PositiveIntegerField(validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000)], verbose_name='weight')),
            ],
            options={
                'verbose_name': 'host',
                'verbose_name_plural': 'hosts',
                'ordering': ('name',),
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='RateLimitRevision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision', models.BigIntegerField(default=0, verbose_name='revision')),
                ('rules', models.CharField(default=django_ratelimit_lua.models.change.new_tag, max_length=8, verbose_name='tag of the rules')),
                ('overrides', models.CharField(default=django_ratelimit_lua.models.change.new_tag, max_length=8, verbose_name='tag of the overrides')),
                ('sections', models.CharField(default=django_ratelimit_lua.models.change.new_tags, max_length=512, verbose_name='tags of the sections')),
                ('database', models.CharField(default=django_ratelimit_lua.models.change.new_database, max_length=32, verbose_name='id of the database')),
            ],
            options={
                'verbose_name': 'revision',
                'verbose_name_plural': 'revisions',
            },
        ),
        migrations.CreateModel(
            name='RateLimitRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision', models.PositiveIntegerField(default=1, editable=False, verbose_name='revision')),
                ('name', models.CharField(help_text="The name of the count: a new name starts a new count. A rule with the name of a decorator's group, a DRF scope or a RateLimiter replaces the limit in the code.", max_length=200, unique=True, verbose_name='name')),
                ('mode', models.CharField(choices=[('enforce', 'enforce'), ('shadow', 'shadow mode'), ('off', 'off')], default='enforce', help_text='Shadow mode counts but does not refuse.', max_length=8, verbose_name='mode')),
                ('order', models.IntegerField(default=0, help_text='Rules are listed and applied in this order, smallest first.', verbose_name='order')),
                ('description', models.TextField(blank=True, help_text='For colleagues: why this rule exists.', verbose_name='description')),
                ('rate', models.CharField(blank=True, help_text='For example 100/m, 10/15m or 5000/d; a number alone is for slots. Several, such as 10/s, 500/h: a request must be within all of them.', max_length=300, verbose_name='rate')),
                ('key', models.CharField(blank=True, help_text='Other: a field such as header:NAME, cookie:NAME, get:NAME, post:NAME, json:NAME, data:NAME or kwarg:NAME, or several keys joined with +. With exact: in front, a value is compared letter by letter, with int: as a whole number. Nothing: the key of the call site with this name.', max_length=300, verbose_name='count by')),
                ('path', models.TextField(blank=True, help_text='One per line: a prefix such as /api/, or a pattern, in which * is any text without a slash, and ** is any text. A single / is every request. Also the name of a URL pattern, such as shop:detail. Empty: only where a limit in the code has the name of this rule.', verbose_name='paths')),
                ('route', models.CharField(blank=True, help_text='The name of a URL pattern, for example shop:detail.', max_length=300, verbose_name='route')),
                ('group', models.CharField(blank=True, help_text='The group of a decorator or the scope of a throttle. This rule then applies in addition to the limits in the code, or instead of them if it has the same name.', max_length=200, verbose_name='call site')),
                ('method', models.CharField(blank=True, help_text='Empty: all methods. GET includes HEAD.', max_length=200, verbose_name='methods')),
                ('audience', models.CharField(default='everyone', help_text='For members of groups: group:NAME, one per line.', max_length=1000, verbose_name='audience')),
                ('message', models.CharField(blank=True, help_text='The text for refused clients.', max_length=300, verbose_name='message')),
                ('options', models.JSONField(blank=True, decoder=django_ratelimit_lua.models.rule.OptionsDecoder, default=dict, verbose_name='options')),
            ],
            options={
                'verbose_name': 'rule',
                'verbose_name_plural': 'rules',
                'ordering': ('order', 'name'),
                'permissions': (('view_identities', 'May see the names of clients'),),
            },
        ),
        migrations.CreateModel(
            name='RateLimitOverride',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision', models.PositiveIntegerField(default=1, editable=False, verbose_name='revision')),
                ('rule', models.CharField(blank=True, default='', help_text='The name of a rule or of a limit in the code. Empty: all of them.', max_length=200, verbose_name='rule')),
                ('network', models.CharField(blank=True, help_text='For example 203.0.113.9 or 2001:db8::/48.', max_length=49, verbose_name='address or network')),
                ('field', models.CharField(blank=True, help_text='The field or key that identifies the client: header:X-API-Key, post:username, or a key of this site such as tenant. Only the digest of its value is stored.', max_length=200, verbose_name='field')),
                ('label', models.CharField(blank=True, help_text='A label for this client, because the value is not stored.', max_length=200, verbose_name='label')),
                ('client_digest', models.CharField(blank=True, default='', help_text='For a client with a hidden name: 32 hexadecimal digits. Such an override ends within 30 days.', max_length=32, verbose_name='digest of a client')),
                ('kind', models.CharField(editable=False, max_length=200, verbose_name='kind')),
                ('subject', models.CharField(db_index=True, editable=False, max_length=32, verbose_name='digest')),
                ('digested_by', models.CharField(default=django_ratelimit_lua.identity.key_id, editable=False, max_length=8, verbose_name='id of the key of the digest')),
                ('effect', models.CharField(choices=[('limit', 'another limit'), ('exempt', 'exempt: no limit'), ('block', 'block: every request is refused')], default='limit', max_length=6, verbose_name='effect')),
                ('rate', models.CharField(blank=True, help_text='The other limit, for example 100/m.', max_length=50, verbose_name='rate')),
                ('burst', models.BigIntegerField(blank=True, help_text='Only for token buckets. Empty: the burst of the rule.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='burst')),
                ('starts', models.DateTimeField(blank=True, help_text='Empty: now.', null=True, verbose_name='starts')),
                ('ends', models.DateTimeField(blank=True, help_text='Empty: never.', null=True, verbose_name='ends')),
                ('forbids', models.BooleanField(default=False, help_text='Blocks: “403 Forbidden” without a time to come back, instead of “429 Too Many Requests”.', verbose_name='answer 403')),
                ('message', models.CharField(blank=True, default='', help_text='Blocks: the text for blocked clients.', max_length=300, verbose_name='message')),
                ('reason', models.CharField(blank=True, max_length=300, verbose_name='reason')),
                ('created_by', models.CharField(blank=True, editable=False, max_length=254, verbose_name='created by')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created at')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='user')),
            ],
            options={
                'verbose_name': 'override',
                'verbose_name_plural': 'overrides',
                'ordering': ('-created_at', '-pk'),
                'permissions': (('block_identity', 'May block, unblock, exempt and reset clients'),),
                'indexes': [models.Index(fields=['kind', 'rule'], name='ratelimit_override_kinds'), models.Index(fields=['ends'], name='ratelimit_override_ends')],
            },
        ),
        migrations.RunPython(name_the_database, migrations.RunPython.noop, elidable=False),
    ]
