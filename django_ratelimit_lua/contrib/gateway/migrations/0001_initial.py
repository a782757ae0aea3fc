from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='RateLimitClient',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='The name of the service.', max_length=200, unique=True, verbose_name='name')),
                ('limits', models.TextField(help_text='Names of rules and limits, one per line. A star at the end matches any text: mail* or a single *.', verbose_name='may use')),
                ('may_refund', models.BooleanField(db_default=False, default=False, help_text='With the operation refund, which can undo every limit that the service may use.', verbose_name='may refund units')),
                ('is_active', models.BooleanField(default=True, help_text='If not active, its token is refused from the next request on.', verbose_name='active')),
                ('digest', models.CharField(editable=False, max_length=64, unique=True, verbose_name='digest of the token')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created at')),
                ('last_used', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='last used')),
            ],
            options={
                'verbose_name': 'gateway service',
                'verbose_name_plural': 'gateway services',
                'ordering': ('name',),
            },
        ),
    ]
