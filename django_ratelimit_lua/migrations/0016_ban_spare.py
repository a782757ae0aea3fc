import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimit_lua', '0015_ban_key'),
    ]

    operations = [
        migrations.AddField(
            model_name='ratelimitrule',
            name='ban_spare',
            field=models.PositiveIntegerField(blank=True, help_text='A ban by address is of the client alone where more other signed-in users than this share the address. Empty: it is of the address.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000)], verbose_name='spare others'),
        ),
    ]
