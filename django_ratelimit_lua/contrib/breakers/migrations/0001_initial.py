from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='RateLimitBreaker',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='The name of a CircuitBreaker in the code.', max_length=200, unique=True, verbose_name='name')),
                ('description', models.TextField(blank=True, help_text='A note about these values.', verbose_name='description')),
                ('failure_ratio', models.FloatField(blank=True, help_text='The ratio of failed calls at which it opens: 0.5 is half. Empty: as in the code.', null=True, verbose_name='failure ratio')),
                ('failures', models.PositiveIntegerField(blank=True, help_text='The number of failures at which it opens. Empty: as in the code.', null=True, verbose_name='failures')),
                ('slow', models.CharField(blank=True, help_text='The duration from which a call is slow, for example 2s. Empty: as in the code.', max_length=20, verbose_name='slow after')),
                ('slow_ratio', models.FloatField(blank=True, help_text='The slow call ratio at which it opens. Empty: as in the code.', null=True, verbose_name='slow call ratio')),
                ('minimum', models.PositiveIntegerField(blank=True, help_text='Minimum number of calls before a ratio is evaluated. Empty: as in the code.', null=True, verbose_name='minimum calls')),
                ('window', models.CharField(blank=True, help_text='The window that is evaluated, for example 30s. Empty: as in the code.', max_length=20, verbose_name='window')),
                ('open_for', models.CharField(blank=True, help_text='How long calls are stopped before a trial call, for example 10s. Empty: as in the code.', max_length=20, verbose_name='open for')),
                ('open_max', models.CharField(blank=True, help_text='Each failed trial doubles the pause, up to this maximum. Empty: as in the code.', max_length=20, verbose_name='maximum pause')),
                ('probes', models.PositiveIntegerField(blank=True, help_text='The number of concurrent trial calls. Empty: as in the code.', null=True, verbose_name='probes')),
                ('forced', models.CharField(blank=True, choices=[('open', 'open: calls are stopped'), ('closed', 'closed: calls are allowed')], editable=False, max_length=8, verbose_name='forced')),
                ('until', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='until')),
                ('why', models.CharField(blank=True, editable=False, max_length=300, verbose_name='reason')),
            ],
            options={
                'verbose_name': 'breaker',
                'verbose_name_plural': 'breakers',
                'ordering': ('name',),
                'permissions': (('force_breaker', 'May force breakers open or closed'),),
            },
        ),
    ]
