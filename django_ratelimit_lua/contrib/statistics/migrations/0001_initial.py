from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='RateLimitHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200)),
                ('moment', models.BigIntegerField()),
                ('allowed', models.BigIntegerField(default=0)),
                ('refused', models.BigIntegerField(default=0)),
                ('banned', models.BigIntegerField(default=0)),
                ('advised_allowed', models.BigIntegerField(default=0)),
                ('advised_refused', models.BigIntegerField(default=0)),
                ('shadow_allowed', models.BigIntegerField(default=0)),
                ('shadow_refused', models.BigIntegerField(default=0)),
                ('exempt', models.BigIntegerField(default=0)),
                ('blocked', models.BigIntegerField(default=0)),
                ('policy', models.BigIntegerField(default=0)),
                ('failed', models.BigIntegerField(default=0)),
                ('units', models.BigIntegerField(default=0)),
                ('near', models.BigIntegerField(default=0)),
                ('people_refused', models.BigIntegerField(null=True)),
            ],
            options={
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['moment'], name='ratelimit_hour_moment')],
                'constraints': [models.UniqueConstraint(fields=('name', 'moment'), name='ratelimit_hour_once')],
            },
        ),
    ]
