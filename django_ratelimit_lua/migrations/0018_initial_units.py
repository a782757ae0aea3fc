import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimit_lua', '0017_client_may_refund'),
    ]

    operations = [
        migrations.AddField(
            model_name='ratelimitrule',
            name='initial',
            field=models.BigIntegerField(blank=True, help_text='Token bucket: units that a new client has. The bucket fills up from there. Empty: the burst.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)], verbose_name='initial units'),
        ),
    ]
