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
                ('description', models.TextField(blank=True, help_text='For colleagues: why these numbers.', verbose_name='description')),
                ('failure_ratio', models.FloatField(blank=True, help_text='It opens when so many of the calls fail: 0.5 is half of them. Empty: as in the code.', null=True, verbose_name='ratio of failures')),
                ('failures', models.PositiveIntegerField(blank=True, help_text='It opens at so many failures, however many calls there were. Empty: as in the code.', null=True, verbose_name='failures')),
                ('slow', models.CharField(blank=True, help_text='A call that takes so long is slow, for example 2s. Empty: as in the code.', max_length=20, verbose_name='slow from')),
                ('slow_ratio', models.FloatField(blank=True, help_text='It opens when so many of the calls are slow. Empty: as in the code.', null=True, verbose_name='ratio of slow calls')),
                ('minimum', models.PositiveIntegerField(blank=True, help_text='Ratios count from so many calls on. Empty: as in the code.', null=True, verbose_name='least calls')),
                ('window', models.CharField(blank=True, help_text='Calls of so long are judged, for example 30s. Empty: as in the code.', max_length=20, verbose_name='window')),
                ('open_for', models.CharField(blank=True, help_text='So long nothing is asked, for example 10s; then it is tried. Empty: as in the code.', max_length=20, verbose_name='open for')),
                ('open_max', models.CharField(blank=True, help_text='Where it fails again, it is open twice as long, up to this. Empty: as in the code.', max_length=20, verbose_name='longest pause')),
                ('probes', models.PositiveIntegerField(blank=True, help_text='So many calls at a time try whether it is well again. Empty: as in the code.', null=True, verbose_name='probes')),
                ('forced', models.CharField(blank=True, choices=[('open', 'open: nothing is asked'), ('closed', 'closed: everything is asked')], editable=False, max_length=8, verbose_name='forced')),
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
