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
                ('revision', models.PositiveIntegerField(default=1, editable=False, verbose_name='revision')),
                ('name', models.CharField(max_length=200, unique=True, verbose_name='name')),
                ('forced', models.CharField(blank=True, choices=[('', 'automatic'), ('open', 'open'), ('closed', 'closed')], max_length=8, verbose_name='forced')),
            ],
            options={
                'verbose_name': 'breaker',
                'verbose_name_plural': 'breakers',
                'ordering': ('name',),
            },
        ),
    ]
