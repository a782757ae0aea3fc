from django.db import migrations, models


class Migration(migrations.Migration):
    """One list of lengths, `ban_for`, says what `ban_factor`, `ban_max` and `ban_forget` said."""

    dependencies = [
        ('django_ratelimit_lua', '0017_client_may_refund'),
    ]

    operations = [
        *(
            migrations.RemoveField(model_name='ratelimitrule', name=name)
            for name in ('ban_factor', 'ban_max', 'ban_forget', 'ban_spare', 'ban_renew')
        ),
        migrations.AlterField(
            model_name='ratelimitrule',
            name='ban_for',
            field=models.CharField(blank=True, db_default='', default='', help_text='How long the first, second and each further ban is, for example 10m,1h,1d. One may be enough: 10m.', max_length=100, verbose_name='ban for'),
        ),
    ]
