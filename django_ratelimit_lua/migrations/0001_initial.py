from typing import Any

import django.core.validators
import django.db.models.deletion
import django_ratelimit_lua.identity
import django_ratelimit_lua.models.change
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
            name='RateLimitHost',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
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
            name='RateLimitRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('limit', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='limit')),
                ('period', models.PositiveIntegerField(default=1, validators=[django.core.validators.MinValueValidator(1)], verbose_name='per')),
                ('unit', models.CharField(choices=[('s', 'seconds'), ('m', 'minutes'), ('h', 'hours'), ('d', 'days'), ('w', 'weeks'), ('x', 'at once')], default='m', max_length=1, verbose_name='unit')),
                ('burst', models.BigIntegerField(blank=True, help_text='Token bucket: requests allowed at once. Empty: the limit.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='burst')),
                ('more_rates', models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list, help_text='One per line, for example 500/h. A request must be within all of them and the limit above.', verbose_name='further limits')),
                ('name', models.CharField(help_text="The name of the count: a new name starts a new count. A rule with the name of a decorator's group, a DRF scope or a RateLimiter replaces the limit in the code.", max_length=200, unique=True, verbose_name='name')),
                ('description', models.TextField(blank=True, help_text='For colleagues: why this rule exists.', verbose_name='description')),
                ('mode', models.CharField(choices=[('enforce', 'enforce'), ('shadow', 'shadow mode'), ('off', 'off')], default='enforce', help_text='Shadow mode counts but does not refuse.', max_length=8, verbose_name='mode')),
                ('order', models.IntegerField(default=0, help_text='Rules are listed and applied in this order, smallest first.', verbose_name='order')),
                ('exempt', models.BooleanField(default=False, help_text='No rule applies to requests of these paths or this route.', verbose_name='exempt')),
                ('path', models.TextField(blank=True, help_text='One per line: a prefix such as /api/, or a pattern. In patterns, * is any text without a slash, and ** is any text. A single / is every request. Empty: only where a limit in the code has the name of this rule.', verbose_name='paths')),
                ('route', models.CharField(blank=True, help_text='The name of a URL pattern, for example shop:detail.', max_length=300, verbose_name='route')),
                ('group', models.CharField(blank=True, help_text='The group of a decorator or the scope of a throttle. This rule then applies in addition to the limits in the code.', max_length=200, verbose_name='call site')),
                ('methods', models.JSONField(blank=True, default=list, help_text='None selected: all methods. GET includes HEAD.', verbose_name='methods')),
                ('audience', models.CharField(choices=[('everyone', 'everyone'), ('anonymous', 'not logged in'), ('authenticated', 'logged in'), ('staff', 'staff'), ('groups', 'members of the groups below')], default='everyone', max_length=16, verbose_name='audience')),
                ('groups', models.JSONField(blank=True, default=list, help_text="Names of Django's groups.", verbose_name='groups')),
                ('key', models.CharField(blank=True, help_text='The key: all, ip, user, user_or_ip, session, path, route, header:NAME, cookie:NAME, get:NAME, post:NAME, json:NAME, data:NAME or kwarg:NAME. Join several with +. With exact: in front, a value is compared letter by letter, with int: as a whole number. Empty: the key of the call site with this name.', max_length=300, verbose_name='count by')),
                ('cost', models.BigIntegerField(blank=True, help_text='Units per request. Empty: 1, or the cost at the call site.', null=True, validators=[django.core.validators.MinValueValidator(0)], verbose_name='cost')),
                ('algorithm', models.CharField(blank=True, help_text='Empty: as in the settings.', max_length=50, verbose_name='algorithm')),
                ('queue', models.BigIntegerField(blank=True, help_text='Leaky bucket: how many requests may wait. Empty: the limit minus 1.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='queue')),
                ('segments', models.PositiveIntegerField(blank=True, help_text='Sliding window: number of parts of the window, which expire one by one. Empty: 10.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000)], verbose_name='segments')),
                ('max_wait', models.FloatField(blank=True, help_text='Token and leaky bucket: seconds. A request waits instead of being refused if its turn comes within this time.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(315619200)], verbose_name='longest wait')),
                ('align', models.CharField(blank=True, choices=[('clock', 'by the clock'), ('day', 'each day'), ('week', 'each week (Monday)'), ('month', 'each month')], help_text='For fixed windows. Empty: with the first request.', max_length=8, verbose_name='window starts')),
                ('time_zone', models.CharField(blank=True, help_text='For days, weeks and months. Empty: UTC.', max_length=64, verbose_name='time zone')),
                ('count_denied', models.BooleanField(default=False, help_text='Windows and logs: a client that keeps trying stays refused.', verbose_name='count refused requests')),
                ('on_store_error', models.CharField(blank=True, choices=[('open', 'allow requests'), ('closed', 'refuse requests'), ('local', 'limit each process to its share')], help_text='What happens while Redis is unavailable. Empty: as in the settings.', max_length=8, verbose_name='fallback')),
                ('lease', models.BigIntegerField(blank=True, help_text='Token bucket and fixed window: units that a process takes at once and spends without asking Redis, for keys that are used very often.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='lease')),
                ('split', models.BooleanField(default=False, help_text='Token bucket and fixed window: each host has a part of the limit, by its weight, which its processes share without asking Redis.', verbose_name='split')),
                ('ban_after', models.PositiveIntegerField(blank=True, help_text='Refusals that trigger a ban. Empty: there are no bans.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000)], verbose_name='ban after')),
                ('ban_window', models.CharField(blank=True, db_default='', default='', help_text='How long a refusal counts, for example 10m. Empty: as long as the first ban.', max_length=16, verbose_name='within')),
                ('ban_for', models.CharField(blank=True, db_default='', default='', help_text='How long the first, second and each further ban is, for example 10m,1h,1d. One may be enough: 10m.', max_length=100, verbose_name='ban for')),
                ('message', models.CharField(blank=True, help_text='The text for refused clients.', max_length=300, verbose_name='message')),
                ('extra', models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict, editable=False)),
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
                ('limit', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='limit')),
                ('period', models.PositiveIntegerField(default=1, validators=[django.core.validators.MinValueValidator(1)], verbose_name='per')),
                ('unit', models.CharField(choices=[('s', 'seconds'), ('m', 'minutes'), ('h', 'hours'), ('d', 'days'), ('w', 'weeks'), ('x', 'at once')], default='m', max_length=1, verbose_name='unit')),
                ('burst', models.BigIntegerField(blank=True, help_text='Token bucket: requests allowed at once. Empty: the limit.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='burst')),
                ('rule', models.CharField(blank=True, default='', help_text='The name of a rule or of a limit in the code. Empty: all of them.', max_length=200, verbose_name='rule')),
                ('network', models.CharField(blank=True, help_text='For example 203.0.113.9 or 2001:db8::/48.', max_length=49, verbose_name='address or network')),
                ('field', models.CharField(blank=True, help_text='The field or key that identifies the client: header:X-API-Key, post:username, or a key of this site such as tenant. Only the digest of its value is stored.', max_length=200, verbose_name='field')),
                ('label', models.CharField(blank=True, help_text='A label for this client, because the value is not stored.', max_length=200, verbose_name='label')),
                ('client_digest', models.CharField(blank=True, db_default='', default='', help_text='For a client with a hidden name: 32 hexadecimal digits. Such an override ends within 30 days.', max_length=32, verbose_name='digest of a client')),
                ('kind', models.CharField(editable=False, max_length=200, verbose_name='kind')),
                ('subject', models.CharField(db_index=True, editable=False, max_length=32, verbose_name='digest')),
                ('digested_by', models.CharField(default=django_ratelimit_lua.identity.key_id, editable=False, max_length=8, verbose_name='id of the key of the digest')),
                ('effect', models.CharField(choices=[('limit', 'another limit'), ('exempt', 'exempt: no limit'), ('block', 'block: every request is refused')], default='limit', max_length=6, verbose_name='effect')),
                ('starts', models.DateTimeField(blank=True, help_text='Empty: now.', null=True, verbose_name='starts')),
                ('ends', models.DateTimeField(blank=True, help_text='Empty: never.', null=True, verbose_name='ends')),
                ('forbids', models.BooleanField(db_default=False, default=False, help_text='Blocks: “403 Forbidden” without a time to come back, instead of “429 Too Many Requests”.', verbose_name='answer 403')),
                ('message', models.CharField(blank=True, db_default='', default='', help_text='Blocks: the text for blocked clients.', max_length=300, verbose_name='message')),
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
        migrations.CreateModel(
            name='RateLimitTier',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('limit', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='limit')),
                ('period', models.PositiveIntegerField(default=1, validators=[django.core.validators.MinValueValidator(1)], verbose_name='per')),
                ('unit', models.CharField(choices=[('s', 'seconds'), ('m', 'minutes'), ('h', 'hours'), ('d', 'days'), ('w', 'weeks'), ('x', 'at once')], default='m', max_length=1, verbose_name='unit')),
                ('burst', models.BigIntegerField(blank=True, help_text='Token bucket: requests allowed at once. Empty: the limit.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='burst')),
                ('more_rates', models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list, help_text='One per line, for example 500/h. A request must be within all of them and the limit above.', verbose_name='further limits')),
                ('group', models.CharField(max_length=150, verbose_name='Django group, or KEY:VALUE')),
                ('rule', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tiers', to='django_ratelimit_lua.ratelimitrule', verbose_name='rule')),
            ],
            options={
                'verbose_name': 'tier',
                'verbose_name_plural': 'tiers',
                'ordering': ('rule', 'group'),
                'constraints': [models.UniqueConstraint(fields=('rule', 'group'), name='ratelimit_one_tier_for_a_group')],
            },
        ),
        migrations.RunPython(name_the_database, migrations.RunPython.noop, elidable=False),
    ]
